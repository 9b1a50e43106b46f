import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpm.data.datasets import Dataset, Shard, to_input
from fedpm.model.masking import MaskedNetwork
from fedpm.model.nets import build
from fedpm.rng import SecretStreams, Streams
from fedpm.training import private as training
from fedpm.training.local import Local
from fedpm.training.noise import Noise
from fedpm.training.private import Private, PrivateScoreTrainer, clip_move, clipped_sum, steps_of_round
from fedpm.training.scores import SampledWeights
from fedpm.wire.theta import Vector
from tests.small import small_net

CPU = torch.device("cpu")
HOW = Local(epochs=2, batch_size=8, lr=0.1)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


def of_the_paper() -> nn.Module:
    return build("conv4-slim", (1, 8, 8), 10)


def sampled_weights(network: MaskedNetwork, gradient: str = "theta") -> SampledWeights:
    theta = torch.from_numpy(Streams(3).fractions("theta", network.size).astype(np.float32) * 0.8 + 0.1)
    sampled = SampledWeights(network, network.weights(0), theta, gradient)
    sampled.sample(Noise(Streams(3), "sample", CPU).uniform(network.size))
    return sampled


def batch(data: Dataset, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return to_input(data.train.x[:count], CPU), torch.from_numpy(data.train.y[:count])


@pytest.mark.parametrize("gradient", ["theta", "identity"])
@pytest.mark.parametrize("net", [small_net, convolution, of_the_paper])
def test_without_clipping_it_is_the_ordinary_gradient(net: type, gradient: str, data: Dataset) -> None:
    network = MaskedNetwork(net())
    sampled = sampled_weights(network, gradient)
    x, y = batch(data, 7)
    x = x + 0.1 * torch.from_numpy(Streams(5).normal("blur", x.numel())).view_as(x)  # pooling takes any of equals
    found = clipped_sum(network, sampled, {}, x=x, y=y, bound=1e9)
    F.cross_entropy(network.forward(sampled.weights, {}, x), y, reduction="sum").backward()
    sampled.backpropagate()
    expected = torch.cat([score.grad.flatten() for score in sampled.scores.values()])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_no_example_adds_more_than_the_bound_and_small_ones_are_left_alone(data: Dataset) -> None:
    network = MaskedNetwork(convolution())
    sampled = sampled_weights(network)
    x, y = batch(data, 5)
    each = [clipped_sum(network, sampled, {}, x=x[i : i + 1], y=y[i : i + 1], bound=1e9) for i in range(5)]
    lengths = sorted(float(gradient.norm()) for gradient in each)
    bound = (lengths[1] + lengths[2]) / 2
    clipped = [clipped_sum(network, sampled, {}, x=x[i : i + 1], y=y[i : i + 1], bound=bound) for i in range(5)]
    for before, after in zip(each, clipped, strict=True):
        assert float(after.norm()) == pytest.approx(min(bound, float(before.norm())), rel=1e-4)
        assert float(F.cosine_similarity(before, after, dim=0)) == pytest.approx(1.0, abs=1e-4)
    assert torch.allclose(
        clipped_sum(network, sampled, {}, x=x, y=y, bound=bound), torch.stack(clipped).sum(0), rtol=1e-3, atol=1e-7
    )


def test_an_example_without_a_finite_gradient_adds_nothing(data: Dataset) -> None:
    network = MaskedNetwork(small_net())
    sampled = sampled_weights(network)
    x, y = batch(data, 3)
    alone = clipped_sum(network, sampled, {}, x=x[1:], y=y[1:], bound=0.01)
    x = x.clone()
    x[0] = math.inf
    assert torch.allclose(clipped_sum(network, sampled, {}, x=x, y=y, bound=0.01), alone)


def test_examples_are_dropped_out_independently(data: Dataset) -> None:
    network = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)))
    sampled = sampled_weights(network)
    x, y = batch(data, 1)
    network.net.train()
    both = clipped_sum(network, sampled, {}, x=x.repeat(2, 1, 1, 1), y=y.repeat(2), bound=1.0)
    assert float(both.norm()) < 1.99, "one mask for both would give twice the same direction"


def shard(data: Dataset, count: int) -> Shard:
    return Shard(data.train.x[:count], data.train.y[:count])


def trained(data: Dataset, private: Private, rng: Streams | None = None, count: int = 40) -> Vector:
    network = MaskedNetwork(small_net())
    start = np.full(network.size, 0.5, np.float32)
    trainer, few = PrivateScoreTrainer(network, HOW, private), shard(data, count)
    stats = network.initial_stats()
    return trainer.train(start, frozen=network.weights(0), stats=stats, shard=few, rng=rng or Streams(1, 1, 1)).values


def test_memory_bounds_change_nothing_but_the_order_of_sums(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    x = data.train.x + 0.1 * Streams(5).normal("blur", data.train.x.size).reshape(data.train.x.shape)  # no exact zeros
    blurred, private = replace(data, train=Shard(x, data.train.y)), Private("example", 0.01, 0.5, 1.0)
    whole = trained(blurred, private)
    monkeypatch.setattr(training, "_GRADIENTS", 3 * 2410)
    assert np.allclose(trained(blurred, private), whole, atol=1e-5)


def test_every_step_moves_by_the_rate(data: Dataset) -> None:
    theta = trained(data, Private("example", 0.01, 50.0, 1.0)).astype(np.float64)
    moved = np.sqrt((np.log(theta / (1 - theta)) ** 2).mean())
    assert moved == pytest.approx(HOW.rate(1, 1) * math.sqrt(2), rel=0.05), "two steps of almost pure noise"


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 3), (0.5, 6), (0.3, 9), (0.01, 300)])
def test_steps_of_a_round_follow_from_settings_alone(rate: float, steps: int) -> None:
    assert steps_of_round(3, rate) == steps


def test_batches_are_poisson_samples(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def note(network: MaskedNetwork, *rest: object, y: torch.Tensor, **others: object) -> torch.Tensor:
        sizes.append(len(y))
        return torch.zeros(network.size)

    monkeypatch.setattr(training, "clipped_sum", note)
    for seed in range(20):
        trained(data, Private("example", 0.01, 1.0, 0.25), Streams(seed), count=200)
    counts = np.array(sizes)
    assert len(counts) == 20 * 8
    assert counts.mean() == pytest.approx(50, abs=3 * 6.1 / math.sqrt(160))
    assert 4 < counts.std() < 8, "√(200·¼·¾) = 6.1: each example by itself, no fixed size"


def test_noise_has_the_tails_that_the_guarantee_needs() -> None:
    draws = Streams(0).normal("noise", 2_000_000)
    assert draws.std() == pytest.approx(1, abs=3e-3)
    assert np.abs(draws).max() > 4.7, "2 million draws of N(0, 1) pass 4.7 with near certainty"
    beyond = (np.abs(draws) > 4.0).sum()
    assert beyond == pytest.approx(127, abs=45)


def test_named_streams_repeat_and_secret_ones_do_not(data: Dataset) -> None:
    private = Private("example", 0.01, 1.0, 1.0)
    assert np.array_equal(trained(data, private), trained(data, private))
    secret = SecretStreams(1, 1, 1)
    assert not np.array_equal(trained(data, private, secret), trained(data, private, secret))
    for name in ("normal", "fractions", "uint32", "permutation"):
        first, again = (getattr(secret, name)("a purpose", 100) for _ in range(2))
        assert not np.array_equal(first, again), name
    assert not torch.equal(Noise(secret, "x", CPU).uniform(50), Noise(secret, "x", CPU).uniform(50))


def test_a_move_is_clipped_in_scores() -> None:
    start = np.array([0.5, 0.01, 0.99, 0.3], np.float32)
    far = clip_move(start, np.array([1.0, 0.0, 0.2, np.nan], np.float32), 0.7)
    moved = np.log(far / (1 - far)) - np.log(start / (1 - start))
    assert np.linalg.norm(moved) == pytest.approx(0.7, rel=1e-4)
    near = np.array([0.51, 0.011, 0.9899, 0.301], np.float32)
    assert clip_move(start, near, 0.7) == pytest.approx(near, abs=1e-6)
    assert clip_move(start, start, 0.7) == pytest.approx(start, abs=1e-6)


def test_a_client_as_unit_trains_as_usual_and_stays_near(data: Dataset) -> None:
    theta = trained(data, Private("client", 2.0, 0.0, 1.0)).astype(np.float64)
    assert np.linalg.norm(np.log(theta / (1 - theta))) == pytest.approx(2.0, rel=1e-3)
