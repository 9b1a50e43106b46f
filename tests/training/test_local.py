import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpm.data.datasets import Dataset, Shard
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.device import choose_device, choose_precision
from fedpm.training.local import Local, Trained, _batches
from fedpm.training.optimiser import Optimiser
from fedpm.training.scores import SampledWeights, ScoreTrainer
from fedpm.training.weights import WeightTrainer
from fedpm.wire.theta import Vector


@pytest.mark.parametrize(("name", "theirs"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_optimisers_are_those_of_torch(name: str, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    start = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    one, other = ([row.clone().requires_grad_() for row in start] for _ in range(2))
    ours = Optimiser(name, one, 0.1)
    optimiser = theirs(other, lr=0.1, fused=True)
    for step in range(4):
        for rows, each in ((one, ours), (other, optimiser)):
            each.zero_grad()
            rows[0].square().sum().backward()
            if step % 2:
                rows[1].sin().sum().backward()  # and the third never has a gradient
            each.step()
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(one[2], start[2])
    assert not torch.equal(one[1], start[1])


def test_the_rate_rises_over_a_share_of_the_steps() -> None:
    value = torch.zeros(1, requires_grad=True)
    local = Local(epochs=3, batch_size=64, lr=1.0, lr_warmup=0.25, optimiser="sgd")
    optimiser = local.optimiser_of([value], round=1, examples=150)  # nine steps
    places = []
    for _ in range(5):
        value.grad = -torch.ones(1)
        optimiser.step()
        places.append(value.item())
    assert places == pytest.approx([1 / 3, 1, 2, 3, 4])


def test_adam_keeps_beta1_of_earlier_gradients() -> None:
    ours, theirs = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimiser = Local(epochs=1, batch_size=1, lr=0.1, beta1=0.5).optimiser_of([ours], round=1, examples=1)
    other = torch.optim.Adam([theirs], lr=0.1, betas=(0.5, 0.999), fused=True)
    for gradient in ([1.0, -2.0], [-3.0, 0.5], [2.0, 2.0]):
        ours.grad, theirs.grad = torch.tensor(gradient), torch.tensor(gradient)
        optimiser.step()
        other.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("examples", "beta1"), [(8, 0.7), (160, 0.7), (240, 0.8), (480, 0.9), (4000, 0.9)])
def test_adam_looks_back_over_a_sixth_of_a_round(examples: int, beta1: float) -> None:
    assert Local(epochs=1, batch_size=8, lr=None, beta1=None).memory(examples) == pytest.approx(beta1)
    assert Local(epochs=1, batch_size=8, lr=None, beta1=0.5).memory(examples) == 0.5


@pytest.mark.parametrize("behind", [False, True])
def test_epsilon_holds_back_values_with_small_gradients(behind: bool) -> None:
    values, still = torch.zeros(3, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimiser = Local(epochs=1, batch_size=1, lr=0.5, epsilon=2.0).optimiser_of([values, still], round=1, examples=1)
    gradients = torch.tensor([4.0, -1.0, 1e-9])
    values.grad = torch.tensor([1.0, -1.0, 1.0]) if behind else gradients
    still.grad = torch.zeros(1)
    optimiser.step([gradients, None] if behind else None)
    size = math.sqrt((16 + 1) / 3)  # root mean square of the layer
    assert values.tolist() == pytest.approx([-0.5 * 4 / (4 + 2 * size), 0.5 / (1 + 2 * size), 0], abs=1e-6)
    assert still.item() == 0


def test_the_ruled_rate_makes_up_for_epsilon() -> None:
    alone, held = (Local(epochs=2, batch_size=8, lr=None, travel=0.5, epsilon=epsilon) for epsilon in (0.0, 0.5))
    assert held.rate(3, 32) == pytest.approx(2 * alone.rate(3, 32))
    size = 0.5  # of its layer's gradients: it goes as far
    assert held.rate(3, 32) * size / (size + 0.5) == pytest.approx(alone.rate(3, 32))
    assert replace(held, most=0.2).rate(3, 1) == pytest.approx(0.25)


@pytest.mark.parametrize("gradient", ["theta", "identity"])
def test_straight_through_gradient_follows_its_definition(gradient: str) -> None:
    network = MaskedNetwork(nn.Linear(9, 5))
    theta, uniform, upstream = (
        torch.rand(50, generator=torch.Generator().manual_seed(seed)).clamp(0.01, 0.99) for seed in range(3)
    )
    weights = network.weights(0)
    sampled = SampledWeights(network, weights, theta, gradient)
    sampled.sample(uniform)
    flat = torch.cat([weight.detach().flatten() for weight in sampled.weights.values()])
    torch.testing.assert_close(flat, (uniform < theta) * weights)
    for name, view in network.views(upstream).items():
        (sampled.weights[name] * view).sum().backward()  # dL/dẇ is upstream
    sampled.backpropagate()
    found = torch.cat([score.grad.flatten() for score in sampled.scores.values()])
    through_sample = theta if gradient == "theta" else torch.ones_like(theta)  # ∂m/∂θ
    torch.testing.assert_close(found, upstream * weights * through_sample * theta * (1 - theta))  # · ∂θ/∂s
    kept = torch.cat([weight.grad.flatten() for weight in sampled.weights.values()])
    torch.testing.assert_close(kept, upstream)  # which ε is held against


def test_the_expected_network_has_the_exact_gradient_of_its_scores(data: Dataset) -> None:
    network = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    scores = torch.randn(network.size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    frozen, x, y = network.weights(0), torch.from_numpy(data.train.x[:8]).float(), torch.from_numpy(data.train.y[:8])
    exact = F.cross_entropy(network.forward(network.views(scores.sigmoid() * frozen), {}, x), y)
    exact.backward()
    expected = SampledWeights(network, frozen, scores.detach().sigmoid(), "identity")
    expected.expect()
    F.cross_entropy(network.forward(expected.weights, {}, x), y).backward()
    expected.backpropagate()
    found = torch.cat([score.grad.flatten() for score in expected.scores.values() if score.grad is not None])
    torch.testing.assert_close(found, scores.grad)


def test_a_first_round_goes_as_far_as_it_must() -> None:
    local = Local(epochs=3, batch_size=64, lr=None, travel=2.0, exponent=0.5, most=0.7, first=9.6)
    assert [local.rate(round, 150) for round in (1, 2)] == pytest.approx([9.6 / 9, 2 / 3])
    assert local.rate(1, 64) == 1.12, "three steps would have to jump"
    assert local.rate(1, 1600) == pytest.approx(2 / math.sqrt(75)), "so many steps go further without it"


def test_with_steps_that_differ_the_rate_falls_with_their_root() -> None:
    local = Local(epochs=3, batch_size=128, lr=None, travel=2.0, exponent=0.5, most=0.7, lr_fade=5.0)
    assert local.rate(1, 5400) == pytest.approx(2 / math.sqrt(129))
    assert local.rate(6, 5400) == pytest.approx(2 / math.sqrt(129) / math.sqrt(2))
    assert local.rate(1, 100) == 0.7


def test_batches_cover_the_shard_once_in_equal_parts() -> None:
    shard = Shard(np.arange(129, dtype=np.float32)[:, None], np.arange(129))
    batches = [y for _, y in _batches(shard, Streams(0).at(1, 2), 0, Local(1, 64, 0.1))]
    assert [len(y) for y in batches] == [43, 43, 43]
    assert sorted(torch.cat(batches).tolist()) == list(range(129))
    again = [y for _, y in _batches(shard, Streams(0).at(1, 2), 1, Local(1, 64, 0.1))]
    assert not torch.equal(torch.cat(batches), torch.cat(again))


def trained(net: nn.Module, data: Dataset, client: int = 0, **how: Any) -> Trained:
    trainer = ScoreTrainer(MaskedNetwork(net), replace(Local(epochs=3, batch_size=64, lr=0.1), **how))
    return train(trainer, np.full(trainer.network.size, 0.5, np.float32), data, Streams(0).at(1, client))


def train(trainer: ScoreTrainer, theta: Vector, data: Dataset, rng: Streams) -> Trained:
    network = trainer.network
    return trainer.train(theta, frozen=network.weights(0), stats=network.initial_stats(), shard=data.train, rng=rng)


def test_training_lowers_the_loss_and_moves_theta(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    first, last = (trained(net, data, epochs=epochs) for epochs in (1, 10))
    assert last.metrics["train_loss"] < 0.5 * first.metrics["train_loss"]
    assert last.values.min() >= 0
    assert last.values.max() <= 1
    assert last.values.std() > 0.1


def test_training_is_a_function_of_its_stream_even_with_dropout(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
    before = torch.get_rng_state()
    first = trained(net, data).values
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)  # whatever the rest of the program draws
    assert np.array_equal(first, trained(net, data).values)
    assert not np.array_equal(first, trained(net, data, client=1).values)


def test_norm_statistics_are_learned(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False), nn.ReLU(), nn.Linear(32, 10))
    assert np.abs(trained(net, data).stats - MaskedNetwork(net).initial_stats()).min() > 0


def test_bfloat16_trains_too(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    assert trained(net, data, epochs=10, precision=torch.bfloat16).metrics["train_loss"] < 1


def test_an_unusable_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="device = 'nonsense'"):
        choose_device("nonsense")
    assert choose_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert choose_device("auto").type == "cpu"
        with pytest.raises(ConfigError, match="device = 'cuda'"):
            choose_device("cuda")


@pytest.mark.parametrize(("native", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_precision_is_bfloat16_only_where_the_cpu_computes_in_it(
    native: bool, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    assert choose_precision("auto", torch.device("cpu")) == chosen
    assert choose_precision("bfloat16", torch.device("cpu")) == torch.bfloat16


def test_norm_layers_that_average_over_all_steps_start_anew_on_every_client(data: Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10, affine=False, momentum=None))
    trainer = ScoreTrainer(MaskedNetwork(net), Local(epochs=1, batch_size=64, lr=0.1))
    theta = np.full(trainer.network.size, 0.5, np.float32)
    first, second = (train(trainer, theta, data, Streams(0).at(1, 0)).stats for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("optimiser", "lr"), [("sgd", 0.1), ("adam", 0.003)])
def test_dense_training_lowers_the_loss_and_leaves_its_start_alone(optimiser: str, lr: float, data: Dataset) -> None:
    masked = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    start = masked.dense_weights(0)
    before = start.copy()

    def dense(epochs: int) -> Trained:
        trainer = WeightTrainer(masked, Local(epochs, 64, lr, optimiser=optimiser))
        return trainer.train(start, stats=masked.initial_stats(), shard=data.train, rng=Streams(0).at(1, 0))

    last = dense(5)
    assert last.metrics["train_loss"] < 0.5 * dense(1).metrics["train_loss"]
    assert np.array_equal(start, before)
    assert np.array_equal(last.values, dense(5).values)


@pytest.mark.parametrize(("round", "rate"), [(1, 0.5), (4, 0.5 * 0.8**3)])
def test_a_plain_gradient_step_is_what_sgd_does_at_the_rate_of_its_round(
    round: int, rate: float, data: Dataset
) -> None:
    masked = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    start, stats, shard = masked.dense_weights(0), masked.initial_stats(), data.train.take(np.arange(50))
    trainer = WeightTrainer(masked, Local(epochs=1, batch_size=64, lr=0.5, lr_decay=0.8, optimiser="sgd"))
    after = trainer.train(start, stats=stats, shard=shard, rng=Streams(0).at(round, 0)).values
    weights = torch.from_numpy(start.copy()).requires_grad_()
    logits = masked.forward(masked.views(weights), {}, torch.from_numpy(shard.x))
    nn.functional.cross_entropy(logits, torch.from_numpy(shard.y)).backward()
    np.testing.assert_allclose(after, start - rate * weights.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("examples", "round", "rate"), [(640, 1, 3.0 / 20), (641, 1, 3.0 / 22), (60, 1, 0.5), (640, 3, 0.15 * 0.81)]
)
def test_a_rate_by_rule_is_the_travel_over_the_steps(examples: int, round: int, rate: float) -> None:
    rule = Local(epochs=2, batch_size=64, lr=None, lr_decay=0.9, travel=3.0, most=0.5)
    assert rule.rate(round, examples) == pytest.approx(rate)
    assert Local(epochs=2, batch_size=64, lr=0.1).rate(round, examples) == 0.1
    fading = Local(epochs=2, batch_size=64, lr=0.1, lr_fade=4.0)
    assert [fading.rate(round, examples) for round in (1, 13)] == [0.1, 0.05]


def test_logit_adjustment_spares_the_classes_that_a_client_lacks(data: Dataset) -> None:
    masked = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    shard = data.train.take(np.flatnonzero(data.train.y < 2))
    bias = masked.size - 10  # of the layer's scores, those of the biases come last

    def moved(adjustment: float) -> np.ndarray:
        how = Local(1, len(shard), 0.5, optimiser="sgd", logit_adjustment=adjustment)
        start, rng = np.zeros(masked.size, np.float32), Streams(0).at(1, 0)
        return WeightTrainer(masked, how).train(start, stats=masked.initial_stats(), shard=shard, rng=rng).values[bias:]

    plain, adjusted = moved(0.0), moved(1.0)
    assert np.allclose(plain[2:], -0.05), "every class that is absent is pushed down"
    assert (np.abs(adjusted[2:]) < 1e-4).all()
    assert np.allclose(adjusted[:2], 0, atol=1e-3), "those that are there are as likely as they should be"


def test_training_by_threshold_is_the_same_whatever_is_drawn(data: Dataset) -> None:
    masked, local = MaskedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), Local(3, 2000, 0.1)
    theta = np.linspace(0.05, 0.95, masked.size, dtype=np.float32)
    start = theta > 0.5

    def masks(threshold: bool) -> list[npt.NDArray[np.bool_]]:
        trainer = ScoreTrainer(masked, local, threshold=threshold)
        return [train(trainer, theta, data, Streams(seed).at(1, 0)).values > 0.5 for seed in (0, 1)]

    one, other = masks(threshold=True)
    assert (one != other).mean() < 0.005  # one batch in another order: float sums differ a little
    assert (one != start).mean() > 0.02
    sampled, again = masks(threshold=False)
    assert (sampled != again).mean() > 0.005
