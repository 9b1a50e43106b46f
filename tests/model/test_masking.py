import hashlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.model.nets import build


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=2)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(self.embed(x).mean(1)))
        return out


LAYERS = [
    (nn.Linear(5, 3), 5),
    (nn.Conv1d(4, 6, 3), 12),
    (nn.Conv2d(4, 6, 3, groups=2), 18),
    (nn.Conv3d(2, 3, 2), 16),
    (nn.ConvTranspose1d(4, 3, 4, stride=2), 8),
    (nn.ConvTranspose2d(4, 3, 2, stride=2), 4),
    (nn.ConvTranspose3d(4, 3, 2), 32),
    (nn.Embedding(9, 4), 1),
]


@pytest.mark.parametrize(("layer", "fan_in"), LAYERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(("init", "gain"), [("kaiming", math.sqrt(2)), ("e", math.e), ("half", 2.0)])
def test_weights_are_plus_minus_sigma_of_their_layer(layer: nn.Module, fan_in: int, init: str, gain: float) -> None:
    masked = MaskedNetwork(layer, init=init)
    weights = masked.weights(0)
    assert masked.size == sum(p.numel() for p in layer.parameters())
    assert set(weights.tolist()) == {-np.float32(gain / math.sqrt(fan_in)), np.float32(gain / math.sqrt(fan_in))}


@pytest.mark.parametrize(("init", "low", "high"), [("half", 0.3, 3.0), ("kaiming", 0.0, 0.01)])
def test_half_of_the_weights_pass_a_signal_on_only_if_sigma_is_meant_for_half(
    init: str, low: float, high: float
) -> None:
    deep = nn.Sequential(*[module for _ in range(12) for module in (nn.Linear(300, 300, bias=False), nn.ReLU())])
    network = MaskedNetwork(deep, init=init)
    x = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(network.size, generator=torch.Generator().manual_seed(1)) < 0.5
    y = network.module(mask * network.weights(3), network.initial_stats())(x)
    assert low < float(y.square().mean() / x.square().mean()) < high


def test_signs_are_fair() -> None:
    weights = MaskedNetwork(nn.Linear(1000, 1000)).weights(3)
    assert float((weights > 0).float().mean()) == pytest.approx(0.5, abs=0.002)  # standard error 0.0005


def test_weights_depend_on_the_seed_alone_in_every_process() -> None:
    masked = MaskedNetwork(build("conv4", (1, 8, 8), 10))
    # Golden: a model file holds only the seed, so these bytes must never change.
    golden = "407322f3ea89763f3295407216b65b0ec7c81c29de0a963c5af306da5c935474"
    assert hashlib.sha256(masked.weights(42).numpy().tobytes()).hexdigest() == golden
    assert not torch.equal(masked.weights(42), masked.weights(43))


def test_the_given_network_is_not_changed() -> None:
    net = nn.Linear(4, 2)
    before = net.weight.detach().clone()
    masked = MaskedNetwork(net)
    masked.module(torch.zeros(masked.size), masked.initial_stats())
    assert torch.equal(net.weight, before)
    assert net.weight.requires_grad


def test_forward_with_flat_weights_equals_the_module() -> None:
    masked = MaskedNetwork(nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, affine=False), nn.Flatten()))
    weights, stats = masked.weights(1), masked.initial_stats()
    masked.net.eval()
    x = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    rest = masked.surroundings(torch.from_numpy(stats))
    assert torch.equal(masked.forward(masked.views(weights), rest, x), masked.module(weights, stats)(x))


def test_norm_statistics_travel_as_one_vector() -> None:
    masked = MaskedNetwork(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)))
    assert masked.initial_stats().tolist() == [0, 0, 0, 1, 1, 1]
    module = masked.module(masked.weights(0), np.arange(6, dtype=np.float32))
    assert module.get_buffer("1.running_mean").tolist() == [0, 1, 2]
    assert module.get_buffer("1.running_var").tolist() == [3, 4, 5]


def test_a_parameter_is_left_frozen_if_the_caller_says_so() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    nn.init.constant_(net.get_parameter("1.weight"), 1.5)
    masked = MaskedNetwork(net, frozen=["1"])
    module = masked.module(masked.weights(0), masked.initial_stats())
    assert masked.size == 9
    assert module.get_parameter("1.weight").tolist() == [1.5, 1.5, 1.5]


def test_frozen_values_are_part_of_the_fingerprint() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    before = MaskedNetwork(net, frozen=["1"]).fingerprint(0)
    nn.init.constant_(net.get_parameter("1.weight"), 1.5)
    assert MaskedNetwork(net, frozen=["1"]).fingerprint(0) != before


def test_an_unknown_frozen_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        MaskedNetwork(nn.Linear(2, 2), frozen=["nonsense"])


def test_fingerprint_tells_networks_and_seeds_apart() -> None:
    nets = [build("conv4", (1, 8, 8), 10), build("conv4", (1, 8, 8), 11), build("conv6", (1, 8, 8), 10)]
    prints = {
        MaskedNetwork(net, init=init).fingerprint(seed) for net in nets for init in ("e", "kaiming") for seed in (0, 1)
    }
    assert len(prints) == 12
    assert MaskedNetwork(nets[0]).fingerprint(0) == MaskedNetwork(build("conv4", (1, 8, 8), 10)).fingerprint(0)


def test_shared_parameters_stay_shared_and_padding_stays_zero() -> None:
    masked = MaskedNetwork(Tied(), frozen=["norm"])
    assert masked.size == 28
    module = masked.module(masked.weights(0), masked.initial_stats())
    assert module.out.weight is module.embed.weight
    assert module.get_parameter("embed.weight")[2].tolist() == [0, 0, 0, 0]
    x = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert torch.equal(
        masked.forward(masked.views(masked.weights(0)), masked.surroundings(torch.zeros(0)), x), module(x)
    )


def test_dense_weights_have_the_deviation_of_their_layer_and_biases_are_zero() -> None:
    net = nn.Sequential(nn.Linear(200, 300), nn.Conv2d(30, 40, 3), nn.Embedding(50, 60, padding_idx=3))
    masked = MaskedNetwork(net)
    weights = masked.views(torch.from_numpy(masked.dense_weights(7)))
    assert float(weights["0.weight"].std()) == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert float(weights["1.weight"].std()) == pytest.approx(math.sqrt(2 / 270), rel=0.02)
    assert not weights["0.bias"].any()
    assert not weights["1.bias"].any()
    assert not weights["2.weight"][3].any()
    assert weights["2.weight"][4].any()
    assert not np.array_equal(masked.dense_weights(7), masked.dense_weights(8))


@pytest.mark.parametrize("init", ["kaiming", "e", "half"])
def test_dense_training_starts_the_same_whatever_the_frozen_weights_are(init: str) -> None:
    weights = MaskedNetwork(nn.Linear(400, 300), init=init).dense_weights(1)
    assert weights[:-300].std() == pytest.approx((2 / 400) ** 0.5, rel=0.01)
    assert not weights[-300:].any()
