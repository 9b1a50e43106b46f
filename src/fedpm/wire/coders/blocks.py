"""Which parameters relative-entropy coding takes together.

The parameters of a layer, in an order that the seed gives, are cut into blocks of one length, and a block that
carries too much into 2^s pieces.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.coders.base import Context

Integers = npt.NDArray[np.int32]
Values = npt.NDArray[Any]

LENGTHS = np.array([round(2 ** (step / 8)) for step in range(89)], np.int64)
"""Lengths that a block may have, in steps of 9 % up to 2048; a layer's is a byte on the wire, its place here."""
MAX_CUTS = 11  # 2¹¹ pieces of one parameter


@dataclass(frozen=True)
class Plan:
    """How a layer of ``size`` parameters is cut: the blocks' length, and the s of each block."""

    size: int
    length: int
    cuts: Integers

    @property
    def kinds(self) -> list[int]:
        """Every s that occurs, rising: pieces of one s have one length."""
        return [int(cut) for cut in np.unique(self.cuts)]

    @property
    def count(self) -> int:
        """The number of pieces."""
        return int((1 << self.cuts.astype(np.int64)).sum())

    def split(self, values: Values) -> list[Values]:
        """Return numbers of all parameters, in their order, as the rows of each kind of pieces, padded with zeros."""
        rows = in_blocks(values, self.length)
        return [cut_rows(rows[self.cuts == cut], cut) for cut in self.kinds]

    def join(self, pieces: list[Values]) -> Values:
        """Return what ``split`` would split so."""
        columns = int(LENGTHS[self.length])
        rows = np.empty((len(self.cuts), columns), pieces[0].dtype if pieces else np.uint8)
        for cut, values in zip(self.kinds, pieces, strict=True):
            rows[self.cuts == cut] = values.reshape(len(values) >> cut, -1)[:, :columns]
        return rows.reshape(-1)[: self.size]


def in_blocks(values: Values, length: int) -> Values:
    """Return the numbers of a layer as rows, one for each block, the last one padded with zeros."""
    columns = int(LENGTHS[length])
    return np.pad(values, (0, -len(values) % columns)).reshape(-1, columns)


def cut_rows(rows: Values, cut: int) -> Values:
    """Return rows cut into 2^cut pieces each."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 2**cut)))
    return padded.reshape(len(rows) * 2**cut, padded.shape[1] // 2**cut)


def most_cuts(length: int) -> int:
    """Return the s at which the pieces of a block are single parameters."""
    return int(LENGTHS[length] - 1).bit_length()


def layers(context: Context) -> list[slice]:
    """Return where each layer's parameters stand, in the order of ``order`` as in that of the network."""
    ends = np.cumsum(context.sizes or (context.size,)).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def order(context: Context) -> Integers:
    """Return the parameters, layer by layer, in the order that the seed gives."""
    return _order(context.shared.seed, context.sizes or (context.size,))


@lru_cache(maxsize=1)  # the same for all clients and rounds of a run
def _order(seed: int, sizes: tuple[int, ...]) -> Integers:
    starts = np.cumsum((0, *sizes[:-1])).tolist()
    draws = [Streams(seed).permutation(f"block order {layer}", size) for layer, size in enumerate(sizes)]
    order = np.concatenate([start + draw for start, draw in zip(starts, draws, strict=True)]).astype(np.int32)
    order.flags.writeable = False
    return order
