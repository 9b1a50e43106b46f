"""The randomised Hadamard transform of long vectors, in O(n log n): y = H·D·x/√P with random signs D.

After it, every coordinate of a block is nearly Gaussian with the same variance, whatever the vector was. Vectors are
cut into blocks of powers of two and only the last one is padded, so that about as many coordinates come out as went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.masks import entropy
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

LARGEST = 2**16  # a block stays in the processor's cache
SMALLEST = 2**10


def hadamard(x: Vector) -> Vector:
    """Return H·x/√P for a vector of length P = 2^k; the transform is its own inverse."""
    scale = np.float32(1 / sqrt(len(x)))
    for _ in range(len(x).bit_length() - 1):  # k equal stages: sums first, then differences, of neighbours
        even, odd = x[0::2], x[1::2]
        x = np.concatenate((even + odd, even - odd))
    return x * scale


def block_lengths(size: int) -> list[int]:
    """Return powers of two that cover a vector; the sum exceeds its length by less than the smallest block."""
    lengths = []
    while size > 0:
        length = min(LARGEST, 1 << (size.bit_length() - 1))
        if length < SMALLEST:
            length = 1 << (size - 1).bit_length()  # the last block: padded
        lengths.append(length)
        size -= length
    return lengths


@dataclass(frozen=True)
class Rotation:
    """A rotation of vectors of one length, the same at both ends because its signs come from shared streams."""

    size: int
    shared: Streams

    @cached_property
    def lengths(self) -> list[int]:
        """The lengths of the blocks."""
        return block_lengths(self.size)

    @property
    def padded(self) -> int:
        """The number of rotated coordinates."""
        return sum(self.lengths)

    @cached_property
    def _signs(self) -> Vector:
        return self.shared.bits("rotation", self.padded).astype(np.float32) * 2 - 1

    def forward(self, x: Vector) -> Vector:
        """Return the rotated vector."""
        y = np.zeros(self.padded, np.float32)
        y[: self.size] = x
        y *= self._signs
        for block in self._blocks():
            y[block] = hadamard(y[block])
        return y

    def inverse(self, y: Vector) -> Vector:
        """Return the vector that was rotated."""
        x = np.empty_like(y)
        for block in self._blocks():
            x[block] = hadamard(y[block])
        return (x * self._signs)[: self.size]

    def sums(self, y: Vector) -> npt.NDArray[np.float64]:
        """Return the sum over each block."""
        return np.array([y[block].sum(dtype=np.float64) for block in self._blocks()])

    def per_coordinate(self, values: npt.NDArray[np.float32]) -> Vector:
        """Return a block's value for each of its coordinates."""
        return np.repeat(values, np.array(self.lengths, np.int64))

    def _blocks(self) -> Iterator[slice]:
        start = 0
        for length in self.lengths:
            yield slice(start, start + length)
            start += length


def paper_bpp(network: MaskedNetwork) -> float:
    """Return the bitrate that the paper's accounting gives to one bit for each rotated coordinate.

    Each tensor is padded to a power of two, P in all; of the P signs about P/2 are ones; and the entropy is taken of
    (P/2)/d, as if they were ones among d. What such padding really sends is P/d bits per parameter.
    """
    padded = sum(1 << (part.size - 1).bit_length() for part in network.parts)
    return entropy(min(1.0, padded / (2 * network.size)))
