"""Texts as token numbers, by the vocabulary of a pretrained network."""

import json
from pathlib import Path

from fedpm.data import local
from fedpm.data.catalog import SPECS
from fedpm.data.datasets import Dataset, dataset
from fedpm.data.wordpiece import WordPiece


def reuters(data_dir: Path | str | None = None) -> Dataset:
    """Return the articles of Reuters-21578 with one of eight topics, as MiniLM's first 48 tokens."""
    spec = SPECS["reuters"]
    articles = json.loads(local.read("reuters", data_dir).files["articles.json"])
    vocabulary = local.read("minilm", data_dir).files["vocab.txt"].decode().splitlines()
    tokens = WordPiece(vocabulary, *spec.shape)([article["text"] for article in articles])
    parts = []
    for test in (False, True):
        rows = [row for row, article in enumerate(articles) if article["test"] == test]
        parts.append((tokens[rows], [spec.classes.index(articles[row]["topic"]) for row in rows]))
    return dataset(*parts, classes=spec.classes, name=spec.title)
