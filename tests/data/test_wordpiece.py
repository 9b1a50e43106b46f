import json
from pathlib import Path

import numpy as np
import pytest

from fedpm.data.catalog import SPECS
from fedpm.data.datasets import load_dataset
from fedpm.data.local import read
from fedpm.data.packages import reuters_articles
from fedpm.data.wordpiece import WordPiece
from fedpm.errors import DataError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "oil", "price", "##s", "##y", ".", "'", "cafe", "u"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Oil prices.", [2, 4, 5, 6, 8, 3]),
        ("OILY\n\tprice", [2, 4, 7, 5, 3]),
        ("Café's", [2, 10, 9, 1, 3]),  # no accents; there is no word s
        ("oil\x7f\x03 u.u", [2, 4, 11, 8, 11, 3]),  # control characters are nothing
        ("", [2, 3]),
        ("u" * 200, [2, 1, 3]),
        ("oil " * 20, [2, 4, 4, 4, 4, 4, 4, 3]),
    ],
)
def test_tokens_are_the_longest_known_pieces(text: str, tokens: list[int]) -> None:
    (row,) = WordPiece(VOCABULARY, 8)([text])
    assert row.tolist() == tokens + [0] * (8 - len(tokens))


def test_articles_of_one_topic_are_split_by_hash(tmp_path: Path) -> None:
    articles = [
        {"id": str(n), "topics": ["earn"] if n % 2 else ["acq", "earn"], "title": "T", "body": "B" if n % 3 else ""}
        for n in range(1000)
    ]
    for name, part in (("reuters-000.json", articles[:500]), ("reuters-001.json", articles[500:]), ("x.json", [])):
        (tmp_path / name).write_text(json.dumps(part))
    found = json.loads(reuters_articles(SPECS["reuters"], {p.name: p for p in tmp_path.iterdir()})["articles.json"])
    assert len(found) == 200
    assert {article["topic"] for article in found} == {"earn"}
    assert 0.15 < np.mean([article["test"] for article in found]) < 0.35


def test_what_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Reuters-21578, 8 topics is not in .*: run fedpm data get reuters"):
        load_dataset("reuters", tmp_path)
    with pytest.raises(DataError, match="run fedpm data get minilm"):
        read("minilm", tmp_path)
