"""BERT's tokens: words in lower case without accents, punctuation apart, cut into the longest known pieces."""

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

UNKNOWN, FIRST, LAST = "[UNK]", "[CLS]", "[SEP]"
_LONGEST = 100  # letters of a word that is looked up at all


class WordPiece:
    """Turns texts into token numbers, 0 where a text is shorter than ``length``."""

    def __init__(self, vocabulary: Sequence[str], length: int) -> None:
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self._length = length

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return (texts, length)."""
        tokens = np.zeros((len(texts), self._length), np.int64)
        for row, text in zip(tokens, texts, strict=True):
            pieces = [piece for word in _words(text[: 16 * self._length]) for piece in self._pieces(word)]
            whole = [FIRST, *pieces[: self._length - 2], LAST]
            row[: len(whole)] = [self._numbers[piece] for piece in whole]
        return tokens

    def _pieces(self, word: str) -> list[str]:
        pieces, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            found = (piece for end in ends if (piece := "##" * (start > 0) + word[start:end]) in self._numbers)
            piece = next(found, "") if len(word) <= _LONGEST else ""
            if not piece:
                return [UNKNOWN]
            pieces.append(piece)
            start += len(piece) - 2 * (start > 0)
        return pieces


def _words(text: str) -> Iterator[str]:
    """Yield words and single punctuation marks."""
    plain = unicodedata.normalize("NFD", text.lower())
    word = ""
    for letter in plain:
        kind = unicodedata.category(letter)
        mark = kind.startswith("P") or (letter.isascii() and letter.isprintable() and not letter.isalnum())
        if letter.isspace() or mark:
            if word:
                yield word
            word = ""
            if mark and not letter.isspace():
                yield letter
        elif kind not in ("Mn", "Cf", "Cc"):
            word += letter
    if word:
        yield word
