"""Entropy coding of integer symbols in contexts, with constriction's ANS coder.

    coded = encode(symbols, contexts, alphabet=2)
    symbols = decode(coded.data, contexts, alphabet=2)

Both ends know the contexts. Statistics do not travel: each context learns them from its own past symbols, in
chunks that double, and starts from those of the context before it, so neighbours should be alike. All of that
is integer arithmetic, and so the same on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import constriction
import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError

models = constriction.stream.model
AnsCoder = constriction.stream.stack.AnsCoder
Histogram = npt.NDArray[np.int64]

FIRST_CHUNK = 8
UNIT = 64  # what a seen symbol counts; finer numbers are for the prior
PRIOR = 32 * UNIT  # the context before counts as much as 32 symbols


@dataclass(frozen=True)
class Coded:
    """Coded symbols, and how many bits the model gives them: what an ideal coder would take."""

    data: bytes
    ideal_bits: float


def encode(symbols: npt.NDArray[Any], contexts: npt.NDArray[Any], alphabet: int) -> Coded:
    """Code symbols from 0 to ``alphabet`` − 1, each in its context (a small unsigned integer)."""
    order, lengths = _grouped(contexts)
    grouped = symbols[order].astype(np.int32)
    totals = list[int]()
    chunks, ideal = [], list[tuple[Histogram, Histogram]]()
    statistics = Statistics(alphabet)
    for start, end in statistics.chunks(lengths):
        chunk = grouped[start:end]
        chunks.append((chunk, statistics.model()))
        totals.append(statistics.total)
        counts = np.bincount(chunk, minlength=alphabet)
        there = counts.nonzero()[0]  # a large alphabet is mostly empty
        ideal.append((counts[there], statistics.expected[there]))
        statistics.learn(counts)
    ans = AnsCoder()
    for chunk, model in reversed(chunks):  # a stack: last in, first out
        ans.encode_reverse(chunk, model)
    return Coded(to_bytes(ans), _ideal_bits(ideal, totals))


def decode(data: bytes, contexts: npt.NDArray[Any], alphabet: int) -> npt.NDArray[np.int32]:
    """Return the symbols; bytes that ``encode`` cannot have written for these contexts raise WireError."""
    ans = open_stack(data)
    order, lengths = _grouped(contexts)
    grouped = np.empty(len(contexts), np.int32)
    statistics = Statistics(alphabet)
    for start, end in statistics.chunks(lengths):
        chunk = ans.decode(statistics.model(), end - start)
        grouped[start:end] = chunk
        statistics.learn(np.bincount(chunk, minlength=alphabet))
    close_stack(ans)
    symbols = np.empty_like(grouped)
    symbols[order] = grouped
    return symbols


class Statistics:
    """How often each symbol is expected: integers, in units of 1/64 of a seen symbol."""

    def __init__(self, alphabet: int) -> None:
        self._alphabet = alphabet
        self._before = np.zeros(alphabet, np.int64)  # of the context before
        self._seen = np.zeros(alphabet, np.int64)
        self.expected = np.zeros(alphabet, np.int64)
        self.total = 0  # of the last model

    def chunks(self, lengths: Histogram) -> Iterator[tuple[int, int]]:
        """Yield the bounds of every chunk of every context that occurs."""
        start = 0
        for length in lengths[lengths > 0].tolist():
            self._begin()
            done = 0
            while done < length:
                size = min(max(FIRST_CHUNK, done), length - done)
                yield start + done, start + done + size
                done += size
            start += length

    def _begin(self) -> None:
        """Start a context from the statistics of the one before, never ruling a symbol out."""
        self._before, self._seen = self._seen, np.zeros(self._alphabet, np.int64)
        total = 10 * int(self._before.sum()) + self._alphabet
        self.expected = (10 * self._before + 1) * PRIOR // total + 1

    def learn(self, counts: Histogram) -> None:
        """Add the symbols of a chunk."""
        self._seen += counts
        self.expected += UNIT * counts

    def model(self) -> Any:
        """Return the model of the next chunk (division of integers is the same everywhere)."""
        self.total = int(self.expected.sum())
        p = self.expected / np.float64(self.total)
        if self._alphabet == 2:
            return models.Bernoulli(float(p[1]), perfect=False)
        return models.Categorical(p, perfect=False)


def to_bytes(ans: Any) -> bytes:
    """Return everything that was pushed, in whole 32-bit words."""
    words: npt.NDArray[np.uint32] = ans.get_compressed()
    return words.astype("<u4", copy=False).tobytes()


def open_stack(data: bytes) -> Any:
    """Return a coder that pops symbols from bytes."""
    if len(data) % 4:
        raise WireError(f"coded data of {len(data)} bytes: should be whole 32-bit words, so it was cut or damaged")
    try:
        return AnsCoder(np.frombuffer(data, "<u4").astype(np.uint32))
    except ValueError:
        raise WireError("coded data ends in a zero word, which the coder never writes: it is damaged") from None


def close_stack(ans: Any) -> None:
    """Check that nothing is left: damaged data or other contexts leave the stack out of step."""
    if not ans.is_empty():
        raise WireError("coded data does not end where its symbols do: it is damaged or was coded for another model")


def _ideal_bits(chunks: list[tuple[Histogram, Histogram]], totals: list[int]) -> float:
    """Return the bits that the chunks' models give to the symbols in them."""
    if not chunks:
        return 0.0
    counts, weights = (np.concatenate(columns) for columns in zip(*chunks, strict=True))
    whole = np.repeat(totals, [len(chunk) for chunk, _ in chunks])
    return float((counts * (np.log2(whole) - np.log2(weights))).sum())


def _grouped(contexts: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], Histogram]:
    """Return an order that brings equal contexts together, and how many of each there are."""
    return np.argsort(contexts, kind="stable"), np.bincount(contexts)
