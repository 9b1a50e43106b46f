from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import WireError
from fedpm.rng import Streams
from fedpm.wire.floats import FINE, decode_floats, encode_floats
from fedpm.wire.theta import Vector

SIZES = [3000, 80, 0, 1]


def around(known: Vector, scale: float) -> Vector:
    return known + np.float32(scale) * Streams(2).coarse_normal("change", len(known))


KNOWN = Streams(1).coarse_normal("known", sum(SIZES))


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e20])
def test_floats_come_back_within_half_a_step_in_a_quarter_of_the_bytes(scale: float) -> None:
    values = around(KNOWN, scale)
    data = encode_floats(values, KNOWN, SIZES)
    found = decode_floats(data, KNOWN, SIZES)
    rms = np.sqrt(np.mean((values - KNOWN).astype(np.float64) ** 2))
    resolution = np.spacing(np.abs(values))
    assert (np.abs(found - values) <= 2.0 ** (1 - FINE) * rms + resolution).all()
    assert len(data) < len(values)


def test_what_was_decoded_is_coded_again_without_loss() -> None:
    known = KNOWN
    for number in range(20):
        after = decode_floats(encode_floats(around(known, 0.9**number), known, SIZES), known, SIZES)
        again = encode_floats(after, known, SIZES, exact=True)
        assert np.array_equal(decode_floats(again, known, SIZES), after)
        known = after


def test_none_is_below_its_least_and_such_a_one_comes_back() -> None:
    least = np.where(np.arange(len(KNOWN)) % 2, 0, -np.inf).astype(np.float32)
    known = np.maximum(KNOWN, least)
    values = np.maximum(around(known, 1.0), least)
    found = decode_floats(encode_floats(values, known, SIZES), known, SIZES, least)
    assert (found >= least).all()
    again = encode_floats(found, known, SIZES, least=least, exact=True)
    assert np.array_equal(decode_floats(again, known, SIZES, least), found)


def test_floats_that_no_grid_holds_are_not_coded() -> None:
    assert not encode_floats(around(KNOWN, 1.0), np.zeros_like(KNOWN), SIZES, exact=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(WireError):
        assert np.isfinite(decode_floats(data, KNOWN[:5], [4, 1])).all()
