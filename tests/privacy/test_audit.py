"""What is claimed against likelihood ratios of many real releases, and that broken mechanisms are found out."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.accounting import Cost, release_epsilon
from fedpm.privacy.mechanism import release
from fedpm.rng import Streams
from fedpm.training import private as training
from fedpm.training.local import Local
from fedpm.training.private import Private, clip_move, train_noisy_scores
from fedpm.wire.theta import Vector
from tests.privacy.audit import Codes, epsilon_at_least

C, D, DELTA, SAMPLES = 0.2, 5, 1e-4, 200_000


def released(theta: float, c: float, sigma: float, seed: int) -> Codes:
    bits = release(np.full((SAMPLES, D), theta), c, sigma, Streams(seed))
    return np.asarray(bits @ (1 << np.arange(D)))


@pytest.mark.parametrize("sigma", [0.3, 0.65, 2.0])
def test_the_release_is_as_private_as_claimed(sigma: float) -> None:
    claimed = release_epsilon(D, C, sigma, DELTA)
    found = epsilon_at_least(released(C, C, sigma, 1), released(1 - C, C, sigma, 2), claimed, DELTA)
    assert 0.7 * claimed < found <= claimed, "and the check is sharp enough to see a third more"


def test_a_release_that_forgets_to_clip_is_found_out() -> None:
    claimed = release_epsilon(D, C, 0.3, DELTA)
    found = epsilon_at_least(released(C, 1e-9, 0.3, 1), released(1 - C, 1e-9, 0.3, 2), claimed, DELTA)
    assert found > claimed


def test_a_release_with_half_the_noise_is_found_out() -> None:
    claimed = release_epsilon(D, C, 0.65, DELTA)
    found = epsilon_at_least(released(C, C, 0.3, 1), released(1 - C, C, 0.3, 2), claimed, DELTA)
    assert found > claimed


def test_a_sample_of_clipped_moves_is_as_private_as_claimed() -> None:
    start = np.array([0.5, 0.5, 0.5], np.float32)
    cost = Cost("client", 1e-3, clip=1.5)
    theta = clip_move(start, np.array([0.999, 0.001, 0.9], np.float32), cost.clip)
    masks = [
        Streams(seed).fractions("masks", 3 * SAMPLES).reshape(SAMPLES, 3) < values
        for seed, values in ((1, theta), (2, start))
    ]
    one, other = (np.asarray(mask @ (1 << np.arange(3))) for mask in masks)
    assert 0.1 < epsilon_at_least(one, other, 0.5, cost.delta) <= cost.epsilon(1)


TINY = MaskedNetwork(nn.Linear(3, 2))
WEIGHTS = TINY.weights(7)
START = np.full(TINY.size, 0.999, np.float32)  # steps see all weights, so that a canary's gradient is always the same
CANARY = Shard(np.array([[300.0, -200.0, 100.0]], np.float32), np.zeros(1, np.int64))
NOBODY = Shard(CANARY.x[:0], CANARY.y[:0])
HOW = Local(epochs=1, batch_size=8, lr=0.1)
COST = Cost("example", 0.01, steps=1, noise=0.7)


def step(shard: Shard, streams: Streams, noise: float, forward: str = "sampled") -> Vector:
    """Return the direction in which one noisy step moves the scores."""
    private, how = Private("example", 1e-4, noise, 1.0), replace(HOW, forward=forward)
    theta = train_noisy_scores(TINY, WEIGHTS, START, shard=shard, rng=streams, how=how, private=private)
    move = np.log(theta / (1 - theta)) - np.log(START / (1 - START))
    return np.asarray(move / np.linalg.norm(move), np.float32)


def bins(shard: Shard, seed: int, forward: str = "sampled", trials: int = 500) -> Codes:
    """Return in which of 16 bins many clients' steps lie along that of the canary alone."""
    canary = step(CANARY, Streams(0), 0.0, forward)
    along = np.array([step(shard, Streams(seed, trial), COST.noise, forward) for trial in range(trials)]) @ canary
    return np.asarray(np.floor((along + 1) * 7.999), np.int64)


@cache
def without() -> Codes:
    return bins(NOBODY, 2)


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["sampled", "expected"])
def test_training_is_as_private_as_claimed(forward: str) -> None:
    found = epsilon_at_least(bins(CANARY, 1, forward), without(), 2.0, COST.delta, 0.99)
    assert 0.2 * COST.epsilon(1) < found <= COST.epsilon(1)


@pytest.mark.slow
def test_training_that_does_not_clip_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = without()  # before that
    clipped_sum: Callable[..., torch.Tensor] = training.clipped_sum
    monkeypatch.setattr(training, "clipped_sum", lambda *most, bound, **rest: clipped_sum(*most, bound=1e9, **rest))
    assert epsilon_at_least(bins(CANARY, 1), nobody, 2.0, COST.delta, 0.99) > COST.epsilon(1)
