"""Orders arrive as they were sent, in little more than log2(n!) bits."""

from math import lgamma, log

import numpy as np
import pytest

from fedpm.errors import WireError
from fedpm.rng import Streams
from fedpm.wire.permutation import decode_order, encode_order


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 100, 1000, 4097])
def test_an_order_arrives_as_it_was_sent(size: int) -> None:
    for order in (Streams(1).permutation("order", size), np.arange(size), np.arange(size)[::-1]):
        assert np.array_equal(decode_order(encode_order(order).data, size), order)


@pytest.mark.parametrize(("size", "excess"), [(64, 1.0001), (1000, 1.01), (50_000, 1.006)])
def test_an_order_takes_little_more_than_the_logarithm_of_their_number(size: int, excess: float) -> None:
    coded = encode_order(Streams(2).permutation("order", size))
    least = lgamma(size + 1) / log(2)
    assert least * 0.999 < coded.ideal_bits < excess * least
    assert 8 * len(coded.data) <= coded.ideal_bits + 64


def test_damaged_orders_are_refused_or_are_orders() -> None:
    data, refused = encode_order(Streams(3).permutation("order", 1000)).data, 0
    for place in range(0, len(data), 16):
        forged = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        try:
            assert np.array_equal(np.sort(decode_order(forged, 1000)), np.arange(1000))
        except WireError:
            refused += 1
    assert refused > 20
    with pytest.raises(WireError):
        decode_order(data[:-4], 1000)
