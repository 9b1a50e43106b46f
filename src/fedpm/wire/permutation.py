"""Coding of an order of n things in little more than log2(n!) bits.

The things are halved again and again. At each halving a bit says for every thing, in order, in which half it is; both
ends know how many are in each. In small groups a bit's chance is that of an urn from which the bits before were
drawn, which costs log2(n!) in all; in large ones it is the share of the half, which costs a little more and is faster.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.wire.entropy import AnsCoder, Coded, close_stack, models, open_stack, to_bytes

Order = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]
EXACT = 64
"""Groups up to this size are urns."""


def encode_order(order: npt.NDArray[Any]) -> Coded:
    """Code an order of the numbers from 0 to n − 1."""
    coded: list[tuple[npt.NDArray[np.int32], Chances]] = []

    def read(places: Order, shift: int, chances: Chances) -> Order:
        bits: Order = order[places] >> shift & 1
        open_ones = (chances > 0) & (chances < 1)
        coded.append((bits[open_ones].astype(np.int32), chances[open_ones]))
        return bits

    _walk(len(order), read)
    ans, ideal = AnsCoder(), 0.0
    for bits, chances in reversed(coded):  # a stack: last in, first out
        ans.encode_reverse(bits, models.Bernoulli(perfect=False), chances)
        ideal -= float(np.log2(np.where(bits, chances, 1 - chances)).sum())
    return Coded(to_bytes(ans), ideal)


def decode_order(data: bytes, size: int) -> Order:
    """Return the order of so many numbers; bytes that are none raise WireError."""
    ans = open_stack(data)

    def read(places: Order, shift: int, chances: Chances) -> Order:
        bits = chances.astype(np.int64)  # what is certain
        open_ones = (chances > 0) & (chances < 1)
        bits[open_ones] = ans.decode(models.Bernoulli(perfect=False), chances[open_ones])
        return bits

    order = _walk(size, read)
    close_stack(ans)
    return order


def _walk(size: int, read: Callable[[Order, int, Chances], Order]) -> Order:
    """Return the order whose bits ``read`` gives for places, the number of the bit, and chances of a one."""
    places, numbers = np.arange(size), np.zeros(size, np.int64)  # by group, and in a group by place
    for shift in reversed(range((size - 1).bit_length())):
        starts = np.arange(0, size, 2 << shift)
        lengths = np.minimum(2 << shift, size - starts)
        ones = np.maximum(0, lengths - (1 << shift))
        if 2 << shift > EXACT:
            bits = read(places, shift, np.repeat(ones / lengths, lengths))
        else:
            bits = _drawn(places, shift, starts, lengths, ones, read)
        if not np.array_equal(np.add.reduceat(bits, starts), ones):
            raise WireError("coded order has a number twice: it is damaged")
        numbers = 2 * numbers + bits
        sorting = np.argsort(numbers, kind="stable")
        places, numbers = places[sorting], numbers[sorting]
    order = np.empty(size, np.int64)
    order[places] = numbers
    return order


def _drawn(
    places: Order, shift: int, starts: Order, lengths: Order, ones: Order, read: Callable[[Order, int, Chances], Order]
) -> Order:
    """Return the bits of small groups, drawn from all of their urns at a time."""
    bits, left = np.empty(len(places), np.int64), ones.copy()
    for drawn in range(2 << shift):
        groups = np.flatnonzero(lengths > drawn)
        at = starts[groups] + drawn
        bits[at] = read(places[at], shift, left[groups] / (lengths[groups] - drawn))
        left[groups] -= bits[at]
    return bits
