import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import ConfigError, WireError
from fedpm.secure.fixed import BITS, mean_of, to_fixed
from fedpm.secure.vectors import Part, Vectors, sum_bits


def test_a_pad_is_the_keystream_of_chacha20() -> None:
    vectors = Vectors([Part(4, 8), Part(2, 16), Part(1, 32)])
    vectors.add_pad(bytes(32), sign=1)  # RFC 8439, A.1, test vector 1: 76 b8 e0 ad  a0 f1 3d 90  40 5d 6a e5
    assert [v.tolist() for v in vectors.values()] == [[0x76, 0xB8, 0xE0, 0xAD], [0xF1A0, 0x903D], [0xE56A5D40]]


def test_integers_are_packed_in_planes_lowest_bit_first() -> None:
    vectors = Vectors([Part(3, 2), Part(1, 1)])
    vectors.add([np.array([1, 2, 3]), np.array([1])])
    assert vectors.to_bytes() == bytes([0b10100000, 0b01100000, 0b10000000])


@given(st.integers(1, 64), st.integers(0, 20), st.binary(min_size=32, max_size=32))
def test_pads_come_off_and_bytes_come_back(bits: int, size: int, seed: bytes) -> None:
    values = np.random.default_rng(size).integers(0, 2**bits, size, np.uint64)
    one, two = Vectors([Part(size, bits)]), Vectors([Part(size, bits)])
    one.add([values])
    one.add_pad(seed, sign=1)
    assert len(one.to_bytes()) == Part(size, bits).packed
    two.add_bytes(one.to_bytes())
    two.add_pad(seed, sign=-1)
    assert two.values()[0].tolist() == values.tolist()


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0", b"\0\1"])
def test_other_bytes_are_refused_and_leave_the_sum(data: bytes) -> None:
    vectors = Vectors([Part(7, 2)])
    with pytest.raises(WireError, match=r"instead of 2|beyond its last integer"):
        vectors.add_bytes(data)
    assert not vectors.values()[0].any()


def test_parts_out_of_range_are_refused() -> None:
    for size, bits in ((1, 65), (1, 0), (-1, 1), (2**32, 1)):
        with pytest.raises(ConfigError, match="1 to 64 bits"):
            Part(size, bits)


def test_fixed_point_keeps_steps_of_two_to_minus_24() -> None:
    values = np.array([0, 1, -1, 2**-24, -(2**-24), 2**-26, 0.1, -999_999.9375, 999_999.9375], np.float32)
    fixed = to_fixed(values)
    assert int(fixed.max()) < 2**BITS
    assert np.abs(mean_of(fixed, 1) - values.astype(np.float64)).max() <= 2**-25
    many = fixed * np.uint64(2**16)  # as many clients as a posterior may be of
    assert np.array_equal(mean_of(many, 2**16), mean_of(fixed, 1))
    assert sum_bits(2**16, BITS) <= 64
