import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.errors import WireError
from fedpm.rng import Streams, scrambled
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.relative_entropy import RelativeEntropy, proposals
from fedpm.wire.theta import Theta
from tests.wire.coders.test_lossless import exchange


def divergence(theta: np.ndarray, known: Context) -> float:
    """Return KL(θ_k ‖ proposal) in bits, summed, by the definition."""
    p, q = theta.astype(np.float64), proposals(known.theta) / 256
    return float((p * np.log2(p / q) + (1 - p) * np.log2((1 - p) / (1 - q))).sum())


def uploads(theta: np.ndarray, known: Context, count: int, coder: RelativeEntropy) -> np.ndarray:
    """Return the mean of many masks, each with candidates and chance of its own."""
    total = np.zeros(len(theta))
    for round in range(count):
        here = Context(known.theta, known.shared.at(round), known.sizes)
        total += coder.encode(theta, here, Streams(77).at(round))[0]
    return total / count


@pytest.mark.parametrize("sizes", [(), (1,), (3, 1, 2), (4000, 10, 990)])
@pytest.mark.parametrize("coder", [RelativeEntropy(), RelativeEntropy(3, 0.5), RelativeEntropy(11, 10.0)])
def test_what_the_client_chose_is_what_the_server_reads(sizes: tuple[int, ...], coder: RelativeEntropy) -> None:
    theta, known = exchange(sum(sizes) or 777)
    known = Context(known.theta, known.shared, sizes)
    mask, coded = coder.encode(theta, known, Streams(7))
    assert np.array_equal(RelativeEntropy().decode(coded.data, known), mask)  # its settings are in the message
    assert coded.ideal_bits - 2 * 64 <= 8 * len(coded.data) <= coded.ideal_bits + 40 + 8 * max(1, len(sizes)) + 2 * 64


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 8), st.floats(0.05, 0.95), st.integers(0, 2**32))
def test_any_theta_survives(size: int, index_bits: int, share: float, seed: int) -> None:
    belief = Theta(Streams(seed).uint8("n", size).astype(np.uint32) % 5, 4)
    theta = (Streams(seed).uint8("θ", size) % 3 / 2).astype(np.float32)  # 0, ½ and 1, and θ_g of 0 and 1
    known = Context(belief, Streams(seed), (size - size // 2, size // 2) if size > 1 else ())
    mask, coded = RelativeEntropy(index_bits, share * index_bits).encode(theta, known, Streams(seed + 1))
    assert np.array_equal(RelativeEntropy().decode(coded.data, known), mask)


@pytest.mark.slow
def test_it_pays_for_what_was_learned_and_not_for_chance() -> None:
    theta, known = exchange(300_000, step=0.3)
    bits = divergence(theta, known)
    for budget in (3.0, 5.0):
        _, coded = RelativeEntropy(8, budget).encode(theta, known, Streams(7))
        assert 8 / 8 * bits < coded.ideal_bits < 1.25 * 8 / budget * bits
    same = known.theta.floats().clip(3 / 256, 253 / 256)
    _, coded = RelativeEntropy().encode(same, known, Streams(7))
    assert coded.ideal_bits / 300_000 < 0.005  # the longest blocks: nothing was learned


def test_layers_that_learned_more_get_shorter_blocks() -> None:
    theta, known = exchange(40_000)
    start = known.theta.floats().clip(3 / 256, 253 / 256)
    known = Context(known.theta, known.shared, (20_000, 20_000))
    theta[20_000:] = start[20_000:]
    _, coded = RelativeEntropy().encode(theta, known, Streams(7))
    moved, still = coded.data[5], coded.data[6]
    assert still == 88 > moved  # the places of the lengths: the second layer has the longest


@pytest.mark.slow
def test_a_block_that_carries_too_much_is_cut() -> None:
    size = 20_000
    belief = Theta(np.zeros(size, np.uint32), 1)
    theta = np.full(size, 3 / 256, np.float32)
    theta[::2000] = 0.99  # a few that each carry 6 bits, among many that carry none
    mask, _ = RelativeEntropy().encode(theta, Context(belief, Streams(3)), Streams(7))
    assert mask[::2000].mean() > 0.8
    uncut = RelativeEntropy(8, 7.99)  # cuts only above 7.995 bits
    assert uploads(theta, Context(belief, Streams(3)), 10, uncut)[::2000].mean() < 1


@pytest.mark.slow
@pytest.mark.parametrize(("coder", "least"), [(RelativeEntropy(), 0.97), (RelativeEntropy(10, 3.0), 0.98)])
def test_the_mean_of_uploads_is_near_theta(coder: RelativeEntropy, least: float) -> None:
    theta, known = exchange(4000)
    start = proposals(known.theta) / 256
    way = theta - start
    held = float(((uploads(theta, known, 200, coder) - start) * way).sum() / (way**2).sum())
    assert least < held < 1.02  # the likelihood ratio itself, to the power 1, would hold about 0.9 with the defaults


@pytest.mark.slow
def test_uploads_go_as_far_away_from_0_and_1_as_towards_them() -> None:
    belief = Theta(np.repeat([1, 9], 4000).astype(np.uint32), 10)
    start = proposals(belief) / 256
    step = np.where(np.arange(8000) % 2, 0.8, -0.8)
    theta = (start / (start + (1 - start) * np.exp(-step))).astype(np.float32)
    way = theta - start
    gone = (uploads(theta, Context(belief, Streams(3)), 100, RelativeEntropy()) - start) * way
    away = (way > 0) == (start < 0.5)
    held = [float(gone[part].sum() / (way[part] ** 2).sum()) for part in (away, ~away)]
    assert abs(held[0] - held[1]) < 0.03  # 0.97 and 1.03 without the skew
    assert min(held) > 0.97


@pytest.mark.slow
def test_candidates_are_samples_of_theta_g() -> None:
    belief = Theta(np.repeat(np.arange(5), 1000).astype(np.uint32), 4)
    known = Context(belief, Streams(3))
    same = (proposals(belief) / 256).astype(np.float32)
    ones = uploads(same, known, 40, RelativeEntropy()).reshape(5, 1000).mean(1)
    assert ones == pytest.approx([3 / 256, 0.25, 0.5, 0.75, 253 / 256], abs=0.006)


def test_chance_is_private_and_candidates_are_shared() -> None:
    theta, known = exchange(5000)
    first, _ = RelativeEntropy().encode(theta, known, Streams(1))
    again, _ = RelativeEntropy().encode(theta, known, Streams(1))
    other, _ = RelativeEntropy().encode(theta, known, Streams(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_words_of_a_stream_at_any_counter() -> None:
    words = scrambled(np.uint64(0), np.arange(1, 4, dtype=np.uint64))
    assert [hex(word) for word in words.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (b"\x0d\0\0\0\0\x08", "indices of 13 bits"),
        (b"\0\0\0\0\0\x08", "indices of 0 bits"),
        (b"\x08\0\0\0\0\xff", "unknown length"),
        (b"\x08\0\0\0\0\x08ab", "whole 32-bit words"),
    ],
)
def test_faults_are_named(data: bytes, words: str) -> None:
    _, known = exchange(400)
    with pytest.raises(WireError, match=words):
        RelativeEntropy().decode(data, known)
