from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import WireError
from fedpm.wire.counts import Prediction, decode_added, decode_counts, encode_added, encode_counts
from fedpm.wire.masks import sample_mask
from fedpm.wire.theta import Theta
from tests.wire.coders.test_lossless import exchange


def round_of(size: int, masks: int) -> tuple[np.ndarray, Theta, list[np.ndarray]]:
    """Return the sum of the masks of one round, the belief before it, and the clients' u."""
    uniforms, added = [], np.zeros(size, np.uint32)
    for client in range(masks):
        theta, known = exchange(size)
        uniforms.append(known.shared.at(3, client).uint32("upload", size))
        added += sample_mask(theta, uniforms[-1])
    return added, known.theta, uniforms


def prediction(before: Theta, uniforms: list[np.ndarray]) -> Prediction:
    result = Prediction(before)
    for uniform in uniforms:
        result.add(uniform)
    return result


@pytest.mark.slow
@given(st.integers(1, 600), st.integers(1, 12))
def test_every_form_gives_the_counts_back(size: int, masks: int) -> None:
    added, before, uniforms = round_of(size, masks)
    layers = (np.arange(size) // 100).astype(np.uint8)
    assert np.array_equal(decode_counts(encode_counts(added, masks, layers).data, masks, layers), added)
    assert np.array_equal(decode_added(encode_added(added, masks, before).data, masks, before), added)
    predicted = prediction(before, uniforms)
    assert np.array_equal(predicted.decode(predicted.encode(added).data), added)


def test_the_more_a_receiver_knows_the_less_is_sent() -> None:
    added, before, uniforms = round_of(200_000, 10)
    full = encode_counts(added, 10, np.zeros(200_000, np.uint8))
    given_counts = encode_added(added, 10, before)
    given_masks = prediction(before, uniforms).encode(added)
    assert len(given_masks.data) < 0.75 * len(given_counts.data) < 0.6 * len(full.data)
    for coded in (full, given_counts, given_masks):
        assert coded.ideal_bits <= 8 * len(coded.data) <= 1.001 * coded.ideal_bits + 64


@given(st.binary(max_size=300))
def test_any_bytes_decode_to_counts_or_a_wire_error(data: bytes) -> None:
    _, before, uniforms = round_of(50, 3)
    for decode in (prediction(before, uniforms).decode, lambda d: decode_added(d, 3, before)):
        with suppress(WireError):
            assert decode(data).max() <= 3


def test_counts_of_other_clients_are_noticed() -> None:
    added, before, uniforms = round_of(5000, 4)
    data = prediction(before, uniforms).encode(added).data
    with pytest.raises(WireError):
        prediction(before, uniforms[:3]).decode(data)
