"""Which parameters relative-entropy coding takes together.

The parameters of a layer, in an order that the seed gives, are cut into blocks of one length, and a block that
carries too much into 2^s pieces.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.masks import Mask

Integers = npt.NDArray[np.int32]

LENGTHS = np.array([round(2 ** (step / 8)) for step in range(89)], np.int64)
"""Lengths that a block may have, in steps of 9 % up to 2048; a layer's is a byte on the wire, its place here."""
MAX_CUTS = 11  # 2¹¹ pieces of one parameter


@dataclass(frozen=True)
class Pieces:
    """Pieces of one length, 2^cut of a block: the parameters of each, −1 where a layer has none left."""

    cut: int
    rows: Integers

    def store(self, mask: Mask, sample: npt.NDArray[np.uint8]) -> None:
        """Put the sampled bits of the pieces where they belong."""
        real = self.rows >= 0
        mask[self.rows[real]] = sample[real]


@dataclass(frozen=True)
class Plan:
    """How a layer is cut: the parameters in their order, the blocks' length, and the s of each block."""

    order: Integers
    length: int
    cuts: Integers

    @cached_property
    def pieces(self) -> list[Pieces]:
        """The pieces, those of one length together."""
        rows = in_blocks(self.order, self.length)
        return [Pieces(cut, cut_rows(rows[self.cuts == cut], cut, -1)) for cut in np.unique(self.cuts).tolist()]

    @property
    def count(self) -> int:
        """The number of pieces."""
        return sum(len(pieces.rows) for pieces in self.pieces)


def in_blocks(order: Integers, length: int) -> Integers:
    """Return the blocks of a layer as rows, the last one padded with −1."""
    columns = int(LENGTHS[length])
    rows = np.full(-(-len(order) // columns) * columns, -1, np.int32)
    rows[: len(order)] = order
    return rows.reshape(-1, columns)


def cut_rows(rows: npt.NDArray[Any], cut: int, padding: int) -> npt.NDArray[Any]:
    """Return rows cut into 2^cut pieces each."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 2**cut)), constant_values=padding)
    return padded.reshape(len(rows) * 2**cut, padded.shape[1] // 2**cut)


def most_cuts(length: int) -> int:
    """Return the s at which the pieces of a block are single parameters."""
    return int(LENGTHS[length] - 1).bit_length()


def orders(context: Context) -> list[Integers]:
    """Return each layer's parameters in the order that the seed gives."""
    sizes = context.sizes or (context.size,)
    return np.split(_order(context.shared.seed, sizes), np.cumsum(sizes)[:-1])


@lru_cache(maxsize=1)  # the same for all clients and rounds of a run
def _order(seed: int, sizes: tuple[int, ...]) -> Integers:
    starts = np.cumsum((0, *sizes[:-1])).tolist()
    draws = [Streams(seed).permutation(f"block order {layer}", size) for layer, size in enumerate(sizes)]
    order = np.concatenate([start + draw for start, draw in zip(starts, draws, strict=True)]).astype(np.int32)
    order.flags.writeable = False
    return order
