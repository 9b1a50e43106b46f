"""θ of every parameter, from the server's counts to the client's floats, and what follows from it in integers alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import floor, log

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.float32]

BLOCK = 2**17
LEVELS = 64
FINE = 2**12
"""θ ahead of a broadcast is a fraction of so many, and what it is ahead by is a multiple of as small a share."""
REACH = 32  # distances are told apart up to ±4 in logit, in steps of 1/8
_CELLS = 4096
_LOGIT = np.array([floor(32 * log((i + 0.5) / (_CELLS - i - 0.5))) for i in range(_CELLS)], np.int16)
_CLAMP = _CELLS // 100  # clients clamp θ to [0.01, 0.99]


@dataclass(frozen=True)
class Theta:
    """θ of every parameter as an exact fraction, numerator/denominator."""

    numerator: Counts
    denominator: int

    def ahead(self, before: "Theta", share: float) -> "Theta":
        """Return θ + share · (θ − θ before) within [0, 1], in integers alone: whoever holds both gets the same."""
        further, now, then = round(share * FINE), self.denominator, before.denominator
        to, back = (FINE + further) * then, further * now
        numerator = np.empty(len(self.numerator), np.uint32)
        for part in blocks(len(numerator)):
            moved = self.numerator[part].astype(np.int64) * to - before.numerator[part].astype(np.int64) * back
            numerator[part] = (moved // (now * then)).clip(0, FINE)
        return Theta(numerator, FINE)

    def floats(self) -> Vector:
        """Return θ as floats, to train with."""
        floats: Vector = (self.numerator / np.float64(self.denominator)).astype(np.float32)
        return floats

    def level(self) -> Bytes:
        """Return θ in 64 levels; 0 and 1 have levels of their own while the denominator is below 64."""
        levels = np.arange(self.denominator + 1, dtype=np.uint64) * LEVELS // (self.denominator + 1)
        return levels.astype(np.uint8).take(self.numerator)

    def side_and_distance(self, uniform: Words) -> Bytes:
        """Return where uniform 32-bit u lie: 1[u < θ] in bit 6, and logit(u) − logit(θ) in bits 0 to 5.

        The distance is in steps of 1/8, plus 32, and clipped to 0 … 63.
        """
        where = np.empty(len(uniform), np.uint8)
        for part in blocks(len(uniform)):
            u, numerator = uniform[part], self.numerator[part]
            distance = _LOGIT.take(u >> np.uint32(20))
            distance -= self._logits.take(numerator)
            distance >>= 2
            where[part] = distance.clip(-REACH, REACH - 1, out=distance) + REACH
            where[part] |= (u < self._thresholds.take(numerator)).view(np.uint8) << 6
        return where

    @cached_property
    def _thresholds(self) -> npt.NDArray[np.uint64]:
        """For each numerator, the least 32-bit integer that is not below θ."""
        fractions = np.arange(self.denominator + 1, dtype=np.uint64) << np.uint64(32)
        return (fractions + np.uint64(self.denominator - 1)) // np.uint64(self.denominator)

    @cached_property
    def _logits(self) -> npt.NDArray[np.int16]:
        """For each numerator, 32 · logit(θ) with θ clamped to [0.01, 0.99]."""
        cells = np.arange(self.denominator + 1, dtype=np.uint64) * _CELLS // self.denominator
        logits: npt.NDArray[np.int16] = _LOGIT[cells.clip(_CLAMP, _CELLS - 1 - _CLAMP)]
        return logits


def blocks(size: int) -> Iterator[slice]:
    """Yield the parts of a long vector in which to work, so that intermediate results stay small and cached."""
    for start in range(0, size, BLOCK):
        yield slice(start, start + BLOCK)
