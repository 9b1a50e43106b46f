"""The candidates of relative-entropy coding: masks of a piece of the network, 2^b of them, that both ends can draw.

A candidate is made of bytes of a counter-based stream, compared with θ_g in 1/256. The server needs one of each piece;
the client needs the evidence of all, which is nearly all of the work of coding. Where numba is installed, that part is
compiled (``compiled.py``). Evidence is in multiples of 1/256 whose sums float32 holds exactly, so that it does not
matter who adds it up, and in which order.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.processes import interrupts_held
from fedpm.rng import scrambled, scrambled_run
from fedpm.wire.theta import Vector

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
Fractions = npt.NDArray[np.float64]

UNIT = np.float32(2**8)
"""Evidence is a multiple of 1/256."""
_DIGITS = 10  # of the power of the likelihood ratio, which is below 4 and a multiple of 1/256
_CHUNK = 2**14  # numbers worked on at a time, so that they stay cached


@dataclass(frozen=True)
class Candidates:
    """The ``number`` candidates of pieces of one length; ``proposal`` is θ_g in 1/256, a row for each piece."""

    key: np.uint64
    number: int
    proposal: Bytes

    @property
    def words(self) -> int:
        """The 64-bit words of a candidate."""
        return -(-int(self.proposal.shape[1]) // 8)

    def take(self, index: Integers) -> Bytes:
        """Return the candidate of that index of each piece."""
        sample: Bytes = np.empty(self.proposal.shape, np.uint8)
        for part in parts(len(index), self.words):
            piece = np.arange(part.start, part.stop, dtype=np.uint64)
            first = (piece * np.uint64(self.number) + index[part].astype(np.uint64)) * np.uint64(self.words)
            counters = np.add.outer(first, np.arange(self.words, dtype=np.uint64))
            draws: Bytes = _bytes(scrambled(self.key, counters))
            sample[part] = draws[..., : sample.shape[1]] < self.proposal[part]
        return sample

    def sums(self, part: slice, evidence: Vector) -> Vector:
        """Return the evidence of all candidates of some pieces, of which ``evidence`` has the rows."""
        fast = _compiled()
        if fast is None:
            return self._sums(part, evidence)
        units = (evidence * UNIT).astype(np.int32)
        with interrupts_held():  # the first call loads what is compiled, or compiles it
            summed: Integers = fast.sums(self.key, part.start, self.number, self.proposal[part], units)
        return summed.astype(np.float32) / UNIT

    def _sums(self, part: slice, evidence: Vector) -> Vector:
        """The same by NumPy."""
        sums = np.empty((len(evidence), self.number), np.float32)
        each, columns = self.number * self.words, evidence.shape[1]
        for here in parts(len(evidence), each):
            draws = scrambled_run(self.key, (part.start + here.start) * each, (here.stop - here.start) * each)
            shaped = _bytes(draws).reshape(-1, self.number, 8 * self.words)[..., :columns]
            ones = (shaped < self.proposal[part][here][:, None]).astype(np.float32)
            np.matmul(ones, evidence[here][..., None], out=sums[here][..., None])
        return sums


def parts(count: int, each: int = 1) -> list[slice]:
    """Return the parts of ``count`` rows of ``each`` words or numbers in which to work."""
    step = max(1, _CHUNK // each)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _bytes(words: npt.NDArray[np.uint64]) -> Bytes:
    return words.astype("<u8", copy=False).view(np.uint8)


def drawn(ratios: Vector, wanted: Vector, chance: Fractions) -> Integers:
    """Draw a candidate of each piece, whose logarithm of the likelihood ratio is ``wanted`` on average.

    Candidates are rows here, pieces columns. They are drawn in proportion to a power of their likelihood ratio, the
    highest at which the mean is below ``wanted``. It is found digit by digit, 2, 1, ½, …: a digit multiplies the
    weights, and its half is its square root.
    """
    factor, excess = np.exp(2 * (ratios - ratios.max(0))), ratios - wanted
    fast = _compiled()
    with interrupts_held():
        index: Integers = (fast.drawn if fast else _drawn)(factor, excess, chance, _DIGITS)
    return index


def _drawn(factor: Vector, excess: Vector, chance: Fractions, digits: int) -> Integers:
    """Draw by NumPy, adding up in the order of the candidates, whatever the machine."""
    if len(chance) == 1:  # a single column would be added up in another order
        return _drawn(factor.repeat(2, 1), excess.repeat(2, 1), chance.repeat(2), digits)[:1]
    weights = np.ones_like(factor)
    for _ in range(digits):
        trial = weights * factor
        weights = np.where((trial * excess).sum(0) < 0, trial, weights)
        np.sqrt(factor, out=factor)
    upto = weights.cumsum(0)
    index: Integers = (upto <= upto[-1] * chance).sum(0, dtype=np.int32)
    return index


@cache
def _compiled() -> Any:
    """Return what is compiled, if numba is installed and finds a place for what it compiles; else None."""
    try:
        with interrupts_held():
            from fedpm.wire.coders import compiled
    except (ImportError, RuntimeError):
        return None
    return compiled
