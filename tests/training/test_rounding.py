"""A mask that keeps what layers give."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpm
from fedpm.data.datasets import Dataset, Shard
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.training.rounding import RIDGE, Calibration, greedy
from tests.small import small_config, small_net

CPU = torch.device("cpu")
NONE = torch.zeros(400, 8)


def layer(units: int = 8, width: int = 150, rows: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs that belong together as those of a layer do, θ and weights."""
    draw = torch.Generator().manual_seed(0)
    inputs = (torch.randn(rows, 20, generator=draw) @ torch.randn(20, width, generator=draw)).relu()
    theta = torch.rand(units, width, generator=draw)
    return inputs, theta, torch.where(torch.rand(units, width, generator=draw) < 0.5, -0.1, 0.1)


def test_it_is_the_greedy_choice_of_one_weight_after_another() -> None:
    inputs, theta, weights = (tensor.double() for tensor in layer(units=3))
    change = torch.randn(len(inputs), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = greedy(inputs, theta, weights, change)
    squares = inputs.square().sum(0)
    ridge = RIDGE * squares.mean()
    for unit in range(3):
        error = change[:, unit].clone()
        for column in squares.argsort(descending=True).tolist():
            weight = weights[unit, column]
            losses = [
                (error + inputs[:, column] * weight * (theta[unit, column] - kept)).square().sum()
                + ridge * (weight * (theta[unit, column] - kept)).square()
                for kept in (0, 1)
            ]
            kept = int(losses[1] < losses[0])
            assert int(found[unit, column]) == kept
            error += inputs[:, column] * weight * (theta[unit, column] - kept)


def test_outputs_stay_closer_to_those_of_theta_on_other_inputs_too() -> None:
    inputs, theta, weights = layer(rows=800)
    seen, other = inputs[:400], inputs[400:]
    wanted = other @ (theta * weights).T
    off = [
        float((other @ (mask * weights).T - wanted).square().mean())
        for mask in (greedy(seen, theta, weights, NONE), theta > 0.5)
    ]
    assert off[0] < off[1] / 3


def test_what_all_clients_agree_on_stays() -> None:
    inputs, theta, weights = layer()
    assert torch.equal(greedy(inputs, theta.round(), weights, NONE), theta.round() == 1)


def test_weights_of_zero_are_thresholded() -> None:
    inputs, theta, _ = layer()
    assert torch.equal(greedy(inputs, theta, torch.zeros_like(theta), NONE), theta > 0.5)


class Odd(nn.Module):
    """A network most of whose layers are not weights times inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.padded = nn.Conv2d(1, 4, 3, padding="same")
        self.twice = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.twice(self.twice(self.table(x)).relu())
        found: torch.Tensor = self.head(self.padded(hidden[:, None]).mean(1).mean(1))
        return found


def test_layers_of_other_kinds_are_thresholded_and_those_used_twice_are_not() -> None:
    network = MaskedNetwork(Odd())
    theta = np.random.default_rng(0).random(network.size, np.float32)
    words = np.random.default_rng(1).integers(0, 10, (50, 6))
    calibration = Calibration.of(network, Shard(words, np.zeros(50, np.int64)), CPU)
    mask = network.views(torch.from_numpy(calibration.mask(theta, network.weights(3), network.initial_stats())))
    plain = network.views(torch.from_numpy(theta > 0.5))
    differ = {name for name in mask if not torch.equal(mask[name] == 1, plain[name])}
    assert differ == {"twice.weight", "head.weight"}


def test_a_layer_makes_up_for_what_the_ones_before_it_changed() -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 9)))
    theta = np.random.default_rng(0).random(network.size, np.float32)
    x = np.random.default_rng(1).random((400, 20), np.float32)
    weights, stats = network.weights(3), network.initial_stats()
    mask = torch.from_numpy(Calibration.of(network, Shard(x[:200], np.zeros(200)), CPU).mask(theta, weights, stats))
    alone = mask.clone()  # every layer rounded on its inputs under θ
    under_theta = network.module(torch.from_numpy(theta) * weights, stats)
    hidden, parts = torch.from_numpy(x[:200]), network.views(alone)
    for name, layer in under_theta.named_children():
        if isinstance(layer, nn.Linear):
            key, change = f"{name}.weight", torch.zeros(200, layer.out_features)
            rows = (network.views(torch.from_numpy(theta))[key], network.views(weights)[key])
            parts[key].copy_(greedy(hidden, *rows, change))
        hidden = layer(hidden)
    wanted, *found = (
        network.module(values * weights, stats)(torch.from_numpy(x[200:]))
        for values in (torch.from_numpy(theta), mask, alone)
    )
    off = [float((each - wanted).square().mean()) for each in found]
    assert off[0] < 0.8 * off[1]


class Routed(nn.Module):
    """A network whose second layer is given some of the rows, by what the first gives."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.rest = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.gate(x)
        return torch.cat([hidden, self.rest(hidden[hidden[:, 0] > 0])])


def test_a_layer_that_is_given_other_rows_under_the_mask_is_thresholded() -> None:
    network = MaskedNetwork(Routed())
    theta = np.random.default_rng(0).random(network.size, np.float32)
    x = np.random.default_rng(1).standard_normal((200, 6)).astype(np.float32)
    calibration = Calibration.of(network, Shard(x, np.zeros(200)), CPU)
    mask = network.views(torch.from_numpy(calibration.mask(theta, network.weights(3), network.initial_stats())))
    assert torch.equal(mask["rest.weight"] == 1, network.views(torch.from_numpy(theta > 0.5))["rest.weight"])


def test_a_layer_that_is_given_zeros_is_thresholded() -> None:
    inputs, theta, weights = layer()
    assert torch.equal(greedy(torch.zeros_like(inputs), theta, weights, NONE), theta > 0.5)


def test_a_network_of_large_layers_is_looked_at_with_fewer_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    seen: list[int] = []
    network.net.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    monkeypatch.setattr("fedpm.training.rounding.NUMBERS", 4 * 7)
    theta = np.random.default_rng(0).random(network.size, np.float32)
    examples = Shard(np.ones((20, 4), np.float32), np.zeros(20, np.int64))
    Calibration.of(network, examples, CPU).mask(theta, network.weights(3), network.initial_stats())
    assert seen == [1, 7, 7]


def test_a_diverged_network_is_thresholded() -> None:
    network = MaskedNetwork(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    theta = np.random.default_rng(0).random(network.size, np.float32)
    examples = Shard(np.full((20, 4), np.inf, np.float32), np.zeros(20, np.int64))
    mask = Calibration.of(network, examples, CPU).mask(theta, network.weights(3), network.initial_stats())
    assert np.array_equal(mask, theta > 0.5)


def test_the_mask_does_not_depend_on_the_number_of_threads(data: Dataset) -> None:
    network = MaskedNetwork(small_net())
    theta = np.random.default_rng(0).random(network.size, np.float32)
    masks = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        calibration = Calibration.of(network, data.train, CPU)
        masks.append(calibration.mask(theta, network.weights(3), network.initial_stats()))
        torch.set_num_threads(before)
    assert np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], theta > 0.5)


def test_fedpm_ships_it_and_a_resumed_run_the_same_one(data: Dataset, tmp_path: Path) -> None:
    whole = fedpm.run(small_config(), net=small_net(), data=data, progress=False)
    assert whole.summary["mode"] == "calibrated"
    fedpm.run(small_config(), net=small_net(), data=data, out=tmp_path / "run", on_round=lambda round: round.stop())
    rest = fedpm.resume(tmp_path / "run", net=small_net(), data=data)
    assert rest.file.to_bytes() == whole.file.to_bytes()


def test_the_shipped_mask_can_be_chosen(data: Dataset) -> None:
    for ship in ("thresholded", "sampled"):
        result = fedpm.run(small_config(rounds=1, fedpm={"ship": ship}), net=small_net(), data=data, progress=False)
        assert result.summary["mode"] == ship
        assert set(result.rounds[0]["validation_accuracy"]) == {"sampled", "thresholded", "expected"}


def test_a_server_without_examples_cannot_calibrate(data: Dataset) -> None:
    config = small_config(fedpm={"ship": "calibrated"}, evaluation={"at": "clients"})
    with pytest.raises(ConfigError, match="the server holds out no examples to calibrate on"):
        fedpm.run(config, net=small_net(), data=data, progress=False)
