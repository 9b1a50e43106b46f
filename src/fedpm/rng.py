"""Named random streams.

Every draw comes from a stream named by (seed, purpose, round, client), so that results depend neither on
the order in which clients run nor on the process that runs them. (Those of clients may be secret instead:
``SecretStreams``.) A name is hashed to a Philox key, and
everything here is made of raw Philox words: NumPy keeps those stable, while the methods of its
``Generator`` may change between releases.
"""

import hashlib
import os
import struct
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_BLOCK = 2**16
SERVER = 2**32 - 1
"""The client number of streams that belong to no client."""


@dataclass(frozen=True)
class Streams:
    """The streams of one seed, or of one round and client of it."""

    seed: int
    round: int = 0
    client: int = SERVER

    def at(self, round: int, client: int = SERVER) -> "Streams":
        """Return the streams of one round and client of the same seed."""
        return replace(self, round=round, client=client)

    def key(self, purpose: str) -> int:
        """Return the 128-bit key of a stream."""
        name = struct.pack("<QII", self.seed, self.round, self.client) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=16, person=b"fedpm-stream").digest(), "little")

    def words(self, purpose: str, count: int) -> npt.NDArray[np.uint64]:
        """Return the first ``count`` 64-bit words of a stream."""
        words: npt.NDArray[np.uint64] = np.random.Philox(key=self.key(purpose)).random_raw(count)
        return words

    def uint32(self, purpose: str, count: int) -> npt.NDArray[np.uint32]:
        """Return uniform 32-bit integers, two to a word."""
        return self.words(purpose, -(-count // 2)).astype("<u8", copy=False).view("<u4")[:count]

    def uint8(self, purpose: str, count: int) -> npt.NDArray[np.uint8]:
        """Return uniform bytes, eight to a word."""
        return self.words(purpose, -(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]

    def bits(self, purpose: str, count: int) -> npt.NDArray[np.uint8]:
        """Return fair bits as zeros and ones."""
        return np.unpackbits(self.uint8(purpose, -(-count // 8)), count=count, bitorder="little")

    def coarse_normal(self, purpose: str, count: int) -> npt.NDArray[np.float32]:
        """Return standard normal numbers in 2¹⁶ equally likely levels, four to a word."""
        words = self.words(purpose, -(-count // 4)).astype("<u8", copy=False)
        return _normal_levels().take(words.view("<u2")[:count])

    def fractions(self, purpose: str, count: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1) with 53 bits."""
        return (self.words(purpose, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: str, count: int) -> npt.NDArray[np.float32]:
        """Return standard normal numbers with tails to ±8.3, for noise that a guarantee rests on."""
        from scipy.special import ndtri  # a slow import, which few need

        return np.asarray(ndtri(self.fractions(purpose, count) + 2.0**-54), np.float32)

    def permutation(self, purpose: str, count: int) -> npt.NDArray[np.intp]:
        """Return a uniform order of ``range(count)``."""
        return np.argsort(self.words(purpose, count), kind="stable")

    def choice(self, purpose: str, population: int, count: int) -> list[int]:
        """Return ``count`` different members of ``range(population)``, drawn uniformly, in rising order."""
        if count == population:
            return list(range(population))
        source, words, members = np.random.Philox(key=self.key(purpose)), np.zeros(0, np.uint64), np.zeros(0, np.intp)
        for start in range(0, population, _BLOCK):  # so that memory does not depend on the population
            end = min(start + _BLOCK, population)
            words = np.concatenate([words, source.random_raw(end - start)])
            members = np.concatenate([members, np.arange(start, end)])
            if len(words) > count:
                smallest = np.argpartition(words, count)[:count]
                words, members = words[smallest], members[smallest]
        return sorted(members.tolist())

    def integer(self, purpose: str) -> int:
        """Return one uniform 63-bit integer, to seed a generator that is not ours."""
        return int(self.words(purpose, 1)[0] >> np.uint64(1))


class SecretStreams(Streams):
    """Streams that nobody can repeat: every word comes from the operating system, whatever the names."""

    def key(self, purpose: str) -> int:
        """Return a fresh key."""
        return int.from_bytes(os.urandom(16), "little")

    def words(self, purpose: str, count: int) -> npt.NDArray[np.uint64]:
        """Return ``count`` fresh 64-bit words."""
        return np.frombuffer(os.urandom(8 * count), np.uint64)


SPLITMIX = (
    np.uint64(0x9E3779B97F4A7C15),
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
    np.uint64(31),
)
"""SplitMix64: the step of its counter, two shifts with the factors that follow them, and the last shift."""


def scrambled(key: np.uint64, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the words of a stream at any counters, by the output function of SplitMix64.

    For draws of which only a few are needed at once: Philox gives words in their order alone.
    """
    return _mixed(counters * SPLITMIX[0] + key)


def scrambled_run(key: np.uint64, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Return the words at ``count`` counters from ``start`` on."""
    first = np.array([start], np.uint64) * SPLITMIX[0] + key
    return _mixed(_steps(count) + first)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble words in place."""
    _, *rounds, last = SPLITMIX
    shifted = np.empty_like(words)
    for shift, factor in rounds:
        words ^= np.right_shift(words, shift, out=shifted)
        words *= factor
    words ^= np.right_shift(words, last, out=shifted)
    return words


@lru_cache(maxsize=4)
def _steps(count: int) -> npt.NDArray[np.uint64]:
    return np.arange(count, dtype=np.uint64) * SPLITMIX[0]


@cache
def _normal_levels() -> npt.NDArray[np.float32]:
    """Return the levels of ``coarse_normal``, rounded to 2⁻¹⁶ so that all machines agree; they reach to ±4.3."""
    quantile = NormalDist().inv_cdf
    upper = [round(quantile((i + 0.5) / 2**16) * 2**16) for i in range(2**15, 2**16)]
    return np.array([-level for level in reversed(upper)] + upper, np.float32) / np.float32(2**16)
