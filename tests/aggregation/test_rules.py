"""Rules that fewer than half of the clients cannot turn: what they leave out, and what they never do."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpm.aggregation.base import Folded, Screen
from fedpm.aggregation.flip_filter import FlipFilter, flips, moments
from fedpm.aggregation.group_median import GroupMedian
from fedpm.aggregation.mean import Mean
from fedpm.aggregation.peer_filter import PeerFilter, differences
from fedpm.aggregation.trimmed_votes import TrimmedVotes
from fedpm.config import load, resolved
from fedpm.errors import ConfigError
from fedpm.experiment.build import build
from fedpm.registry import AGGREGATORS
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta
from tests.small import small_config, small_net

OURS = [spec for spec in AGGREGATORS if spec.build.__module__.startswith("fedpm.")]  # not those of other tests
SIZE = 4000
RNG = np.random.default_rng(0)
START = Theta(RNG.integers(0, 2, SIZE).astype(np.uint32), 1)
"""θ of a first round, 0 or 1."""
LEARNED = Theta(RNG.binomial(10, RNG.beta(0.3, 0.3, SIZE)).astype(np.uint32), 10)
both = pytest.mark.parametrize("theta", [START, LEARNED], ids=["start", "learned"])


def moved(theta: Theta, far: float, seed: int) -> Mask:
    """Return a sample of a θ_k that lies between θ and noise."""
    rng = np.random.default_rng(seed)
    near = (1 - far) * theta.floats() + far * rng.random(SIZE)
    return (rng.random(SIZE) < near).astype(np.uint8)


def honest(theta: Theta, number: int = 7) -> list[Mask]:
    return [moved(theta, 0.03 + 0.003 * seed, seed) for seed in range(number)]


@both
def test_flips_of_samples_have_the_mean_and_the_variance_that_theta_predicts(theta: Theta) -> None:
    found = [flips(moved(theta, 0.0, seed), theta) for seed in range(400)]
    mean, variance = moments(theta)
    assert abs(np.mean(found) - mean) <= 5 * np.sqrt(variance / 400)
    assert np.var(found) == pytest.approx(variance, rel=0.3)
    brute = np.abs(moved(theta, 0.1, 1) - theta.floats().astype(np.float64)).sum()
    assert flips(moved(theta, 0.1, 1), theta) == pytest.approx(brute, rel=1e-6)


@both
def test_three_lies_of_ten_are_left_out_and_nobody_else(theta: Theta) -> None:
    true = honest(theta)
    against = (theta.floats() <= 0.5).astype(np.uint8)
    for lie in (np.ones(SIZE, np.uint8), np.zeros(SIZE, np.uint8), 1 - true[0], against, moved(theta, 1.0, 99)):
        reasons = FlipFilter().screen(iter([lie, *true[:3], lie, *true[3:], lie]), theta)
        assert [bool(reason) for reason in reasons] == [True, *[False] * 3, True, *[False] * 4, True]
        assert "flips beyond what θ predicts, where the median of the round is" in reasons[0]


def test_votes_on_undecided_weights_are_seen_by_the_peers_alone() -> None:
    theta = Theta(np.full(SIZE, 5, np.uint32), 10)  # any mask has as many flips
    leaning = [(np.random.default_rng(seed).random(SIZE) < 0.7).astype(np.uint8) for seed in range(7)]
    lie = np.zeros(SIZE, np.uint8)
    masks = [*leaning, lie, lie, lie]
    assert not any(FlipFilter().screen(masks, theta))
    reasons = PeerFilter().screen(masks, theta)
    assert [bool(reason) for reason in reasons] == [False] * 7 + [True] * 3
    assert "differences from the others beyond what θ predicts" in reasons[-1]
    assert not any(PeerFilter().screen(leaning, theta))
    assert not any(PeerFilter().screen([*leaning[:2], lie], theta))


def test_differences_are_those_of_pairs() -> None:
    masks = [np.array(bits, np.uint8) for bits in ([0, 0, 0], [0, 1, 1], [1, 1, 1], [0, 0, 1])]
    assert differences([np.packbits(mask) for mask in masks]).tolist() == [2, 1, 2, 1]


@both
def test_honest_clients_of_very_different_drift_stay(theta: Theta) -> None:
    for seed in range(20):
        masks = [moved(theta, far, 100 * seed + k) for k, far in enumerate((0.03, 0.03, 0.03, 0.03, 0.03, 0.05))]
        assert not any(PeerFilter().screen(masks, theta))
    undecided = Theta(np.ones(SIZE, np.uint32), 2)
    for seed in range(30):  # samples of θ = ½ differ by chance alone
        assert not any(PeerFilter().screen([moved(undecided, 0.0, 10 * seed + k) for k in range(5)], undecided))
    nothing_learned = [moved(theta, 0.0, seed) for seed in range(100)]
    assert not any(PeerFilter().screen(nothing_learned, theta))


def test_of_three_nobody_is_the_outlier() -> None:
    masks = [*honest(LEARNED, 2), np.ones(SIZE, np.uint8)]
    assert FlipFilter().screen(masks, LEARNED) == ["", "", ""]
    assert any(FlipFilter().screen([*honest(LEARNED, 3), np.ones(SIZE, np.uint8)], LEARNED))
    assert FlipFilter().screen([], LEARNED) == []


votes = st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=12)


def fold(rule: TrimmedVotes | GroupMedian, masks: Iterable[list[int]]) -> Folded:
    return rule.fold((np.array(mask, np.uint8) for mask in masks), 4, np.uint32)


@given(votes, st.floats(0, 0.49))
def test_trimmed_votes_are_the_mean_of_those_in_the_middle(masks: list[list[int]], share: float) -> None:
    folded, cut = fold(TrimmedVotes(share), masks), int(share * len(masks))
    middle = np.sort(np.array(masks), axis=0)[cut : len(masks) - cut]
    assert folded.count == len(middle)
    assert folded.total.tolist() == middle.sum(0).tolist()


@given(votes, st.integers(3, 6))
def test_the_median_is_that_of_the_groups_means(masks: list[list[int]], groups: int) -> None:
    folded = fold(GroupMedian(groups), masks)
    means = [np.mean(masks[group::groups], axis=0) for group in range(min(groups, len(masks)))]
    assert folded.count == len(masks)
    assert np.abs(folded.mean() - np.median(means, axis=0)).max() <= 0.5 / len(masks) + 1e-9


def test_two_liars_decide_nothing_where_eight_agree() -> None:
    masks = [*[[0, 0, 0, 0]] * 2, *[[1, 1, 1, 1]] * 8]
    for rule in (TrimmedVotes(0.2), GroupMedian(5)):
        assert fold(rule, masks).mean().tolist() == [1, 1, 1, 1]
    assert Mean().fold((np.array(mask, np.uint8) for mask in masks), 4, np.uint32).mean().tolist() == [0.8] * 4


def test_of_no_vector_the_count_is_0() -> None:
    for spec in OURS:
        rule = spec.build(spec.settings() if spec.settings else None)
        assert rule.fold(iter(()), 4, np.uint32).count == 0


def test_rules_say_what_they_need() -> None:
    rules = {spec.name: spec.build(spec.settings() if spec.settings else None) for spec in OURS}
    assert [name for name, rule in rules.items() if getattr(rule, "needs_uploads", False)] == [
        "flip-filter", "peer-filter", "trimmed-votes", "group-median",
    ]  # fmt: skip
    assert [name for name, rule in rules.items() if isinstance(rule, Screen)] == ["flip-filter", "peer-filter"]


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ([], "peer-filter"),
        (["clients.sampled=4"], "peer-filter"),
        (["clients.total=200"], "flip-filter"),
        (["clients.sampled=3"], "mean"),
        (["clients.total=3"], "mean"),
        (["privacy.unit=example", "privacy.epsilon=8"], "peer-filter"),
        (["algorithm=fedmask"], "mean"),
        (["algorithm=fedavg"], "mean"),
        (["aggregator=trimmed-votes"], "trimmed-votes"),
    ],
)
def test_the_rule_is_chosen_by_algorithm_and_clients(overrides: list[str], rule: str) -> None:
    assert resolved(load("quickstart", overrides)).aggregator == rule


def test_a_rule_for_masks_is_refused_where_there_are_none() -> None:
    config = small_config(algorithm="fedavg", aggregator="flip-filter")
    with pytest.raises(ConfigError, match="'flip-filter' folds masks, and algorithm = 'fedavg' sends none: use 'mean'"):
        build(config, net=small_net())
