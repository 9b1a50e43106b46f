"""Coders of the server's counts on their way down: integers, never floats.

θ_g is a function of how many of ``total`` masks had a one. Three forms, for what the receiver knows already:
nothing; the θ_g of the round before; and with it the u of the clients that answered, which predict their masks.
"""

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.theta import REACH, Counts, Theta, Words

Bytes = npt.NDArray[np.uint8]
_NEAR = 12  # bins of a sum of nearnesses, one an octave


def encode_counts(counts: Counts, total: int, layers: Bytes) -> Coded:
    """Code counts from 0 to ``total`` for a receiver that knows only which layer a parameter is in."""
    return encode(counts, layers, total + 1)


def decode_counts(data: bytes, total: int, layers: Bytes) -> Counts:
    """Decode counts from 0 to ``total``."""
    return decode(data, layers, total + 1).astype(np.uint32)


def encode_added(added: Counts, masks: int, before: Theta) -> Coded:
    """Code how many of the last ``masks`` masks had a one, given the θ_g that their clients started from."""
    return encode(added, before.level(), masks + 1)


def decode_added(data: bytes, masks: int, before: Theta) -> Counts:
    """Decode how many of the last ``masks`` masks had a one."""
    return decode(data, before.level(), masks + 1).astype(np.uint32)


class Prediction:
    """What the shared u of the clients that answered say about the sum of their masks.

    Clients that learned nothing would have sent 1[u < θ_g]. A mask differs the more likely, the nearer u is to θ_g;
    the summed nearness of the u above and of those below are the contexts.
    """

    def __init__(self, before: Theta) -> None:
        self._before = before
        self._masks = 0
        self._ones = np.zeros(len(before.numerator), np.int32)
        self._above = np.zeros(len(before.numerator), np.int32)
        self._below = np.zeros(len(before.numerator), np.int32)

    def add(self, uniform: Words) -> None:
        """Take in the u of one client."""
        where = self._before.side_and_distance(uniform)
        self._ones += where >> 6
        self._above += _ABOVE[where]
        self._below += _BELOW[where]
        self._masks += 1

    def encode(self, added: Counts) -> Coded:
        """Code how many masks had a one."""
        return encode(added.astype(np.int32) - self._ones + self._masks, self._contexts(), 2 * self._masks + 1)

    def decode(self, data: bytes) -> Counts:
        """Decode how many masks had a one."""
        added = decode(data, self._contexts(), 2 * self._masks + 1) + (self._ones - self._masks)
        if len(added) and not 0 <= int(added.min()) <= int(added.max()) <= self._masks:
            raise WireError(f"counts beyond the {self._masks} masks they are of: damaged, or coded for other clients")
        return added.astype(np.uint32)

    def _contexts(self) -> Bytes:
        above, below = (_octave(nearness) for nearness in (self._above, self._below))
        return above * np.uint8(_NEAR) + below


_ABOVE = np.array([4096 >> max(0, step - REACH) // 2 for step in range(2 * REACH)] + [0] * 2 * REACH, np.int32)
_BELOW = np.array([0] * 2 * REACH + [4096 >> max(0, REACH - 1 - step) // 2 for step in range(2 * REACH)], np.int32)
"""Nearness by side and distance: it halves with every 1/4 of logit, as the chance of a difference does in training."""


def _octave(values: npt.NDArray[np.int32]) -> Bytes:
    """Return the binary order of magnitude, from 2⁵ up, in 12 bins (exact: a float32 holds these integers)."""
    return (np.frexp(values.astype(np.float32))[1] - 5).clip(0, _NEAR - 1).astype(np.uint8)
