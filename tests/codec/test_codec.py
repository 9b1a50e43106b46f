from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.codec.counts import decode_counts, encode_counts
from fedpm.codec.masks import decode_frequency, encode_frequency, entropy
from fedpm.errors import WireError
from fedpm.rng import Streams

masks = st.lists(st.integers(0, 1), min_size=1, max_size=2000).map(lambda bits: np.array(bits, np.uint8))


@given(masks)
def test_a_mask_comes_back_bit_for_bit(mask: np.ndarray) -> None:
    assert np.array_equal(decode_frequency(encode_frequency(mask), len(mask)), mask)


@pytest.mark.parametrize("ones", [0.0, 1e-4, 0.03, 0.3, 0.5, 0.9, 1.0])
def test_a_mask_takes_its_empirical_entropy(ones: float) -> None:
    mask = (Streams(0).uint32("mask", 300_000) < ones * 2**32).astype(np.uint8)
    ideal = entropy(float(mask.mean())) * len(mask) / 8
    assert len(encode_frequency(mask)) <= 1.005 * ideal + 12  # the number of ones, and the coder's last words


@given(st.integers(1, 40), st.integers(0, 2**32), st.integers(1, 500))
def test_counts_come_back_exactly(total: int, seed: int, size: int) -> None:
    counts = (Streams(seed).uint32("counts", size) % (total + 1)).astype(np.uint32)
    decoded, decoded_total = decode_counts(encode_counts(counts, total), size)
    assert decoded_total == total
    assert np.array_equal(decoded, counts)


def test_counts_take_their_empirical_entropy() -> None:
    uniform = Streams(0).uint32("counts", 200_000) / 2**32
    counts = (uniform**3 * 11).astype(np.uint32)
    p = np.bincount(counts) / len(counts)
    ideal = -(p * np.log2(p)).sum() * len(counts) / 8
    assert len(encode_counts(counts, 10)) <= 1.005 * ideal + 60


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_any_bytes_decode_to_a_mask_or_a_wire_error(data: bytes, size: int) -> None:
    with suppress(WireError):
        assert set(np.unique(decode_frequency(data, size))) <= {0, 1}


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_any_bytes_decode_to_counts_or_a_wire_error(data: bytes, size: int) -> None:
    with suppress(WireError):
        counts, total = decode_counts(data, size)
        assert counts.max() <= total


def test_a_mask_of_another_length_is_refused() -> None:
    coded = encode_frequency(Streams(1).bits("mask", 5000))
    for size in (4999, 5001, 10):
        with pytest.raises(WireError):
            decode_frequency(coded, size)
