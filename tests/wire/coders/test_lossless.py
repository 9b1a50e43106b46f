from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm import registry
from fedpm.errors import WireError
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.frequency import Frequency
from fedpm.wire.masks import entropy, sample_mask
from fedpm.wire.theta import Theta
from tests.makers import coding_of

OURS = [spec.name for spec in registry.CODERS if spec.form < registry.OWN_FORMS]  # not those of test_extending.py
CODERS = {name: coding_of(name).coder for name in OURS}
LOSSLESS = {name: coder for name, coder in CODERS.items() if name != "relative-entropy"}


def exchange(size: int, total: int = 10, seed: int = 0, step: float = 0.5) -> tuple[np.ndarray, Context]:
    """Return a client's θ_k some way from a θ_g that is mostly decided, as late in training."""
    uniform = Streams(seed).uint32("belief", size) / 2**32
    counts = np.round(total * np.where(uniform < 0.5, uniform**3 * 4, 1 - (1 - uniform) ** 3 * 4)).astype(np.uint32)
    belief = Theta(counts, total)
    theta = belief.floats().clip(0.01, 0.99)
    move = step * (Streams(seed).uint32("a", size) / 2**32 + Streams(seed).uint32("b", size) / 2**32 - 1) * 3
    moved = 1 / (1 + np.exp(-(np.log(theta / (1 - theta)) + move)))
    return moved.astype(np.float32), Context(belief, Streams(seed).at(3, 1))


@pytest.mark.parametrize("total", [1, 10, 300])
@pytest.mark.parametrize("size", [1, 7, 5000])
def test_lossless_coders_deliver_the_identical_mask(size: int, total: int) -> None:
    theta, known = exchange(size, total)
    expected = sample_mask(theta, known.uniform())
    for coder in LOSSLESS.values():
        mask, coded = coder.encode(theta, known, private=known.shared)
        assert np.array_equal(mask, expected)
        assert np.array_equal(coder.decode(coded.data, known), expected)


def test_each_coder_takes_its_ideal_and_less_than_the_one_before() -> None:
    theta, known = exchange(300_000)
    sizes = []
    for coder in LOSSLESS.values():
        _, coded = coder.encode(theta, known, private=known.shared)
        assert coded.ideal_bits <= 8 * len(coded.data) <= 1.001 * coded.ideal_bits + 96
        sizes.append(len(coded.data))
    assert sizes[2] < 0.5 * sizes[1] < 0.5 * sizes[0]


def test_a_small_model_still_gains() -> None:
    theta, known = exchange(5000)
    sizes = {name: len(coder.encode(theta, known, known.shared)[1].data) for name, coder in CODERS.items()}
    assert sizes["shared-randomness"] < 0.6 * sizes["side-information"] < 0.6 * sizes["frequency"]


def test_private_randomness_needs_nothing_of_the_server() -> None:
    theta, known = exchange(2000)
    for name in ("frequency", "side-information"):
        coder = CODERS[name]
        mask, coded = coder.encode(theta, known, private=Streams(123456).at(3, 1))
        assert np.array_equal(mask, sample_mask(theta, Streams(123456).at(3, 1).uint32("upload", 2000)))
        assert not np.array_equal(mask, sample_mask(theta, known.uniform()))
        assert np.array_equal(coder.decode(coded.data, known), mask)


@pytest.mark.parametrize("ones", [0.0, 1e-4, 0.03, 0.3, 0.5, 0.9, 1.0])
def test_the_papers_coder_takes_the_empirical_entropy(ones: float) -> None:
    mask = (Streams(0).uint32("mask", 300_000) < ones * 2**32).astype(np.uint8)
    coded = Frequency().encode_mask(mask)
    ideal = entropy(float(mask.mean())) * len(mask) / 8
    assert coded.ideal_bits / 8 == pytest.approx(ideal)
    assert len(coded.data) <= 1.005 * ideal + 12  # the number of ones, and the coder's last words
    assert np.array_equal(Frequency().decode_mask(coded.data, len(mask)), mask)


@given(st.sampled_from(sorted(CODERS)), st.binary(max_size=300))
def test_any_bytes_decode_to_a_mask_or_a_wire_error(name: str, data: bytes) -> None:
    _, known = exchange(400)
    with suppress(WireError):
        assert set(np.unique(CODERS[name].decode(data, known))) <= {0, 1}


@pytest.mark.parametrize("name", sorted(LOSSLESS.keys() - {"secure-sum"}))  # to others any bits are good in their frame
def test_a_mask_for_another_belief_is_noticed(name: str) -> None:
    theta, known = exchange(5000)
    data = CODERS[name].encode(theta, known, known.shared)[1].data
    _, other = exchange(4999, seed=1)
    with pytest.raises(WireError):
        CODERS[name].decode(data, other)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"ab", "too short"), (b"\xff\xff\0\0", "claims 65535 ones among 400"), (b"\x05\0\0\0abc", "whole 32-bit words")],
)
def test_faults_of_the_papers_coder_are_named(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        Frequency().decode_mask(data, 400)
