"""Where θ starts."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from fedpm.model import start
from fedpm.model.masking import MaskedNetwork
from fedpm.model.nets import build
from fedpm.model.start import TOTAL, starting_theta


def kept_of(net: nn.Module, seed: int = 0, init: str = "zero-sum") -> dict[str, torch.Tensor]:
    """Return which weights are kept before any training, by name."""
    network = MaskedNetwork(net, init=init)
    theta = starting_theta(network, seed)
    assert set(np.unique(theta)) <= {0, TOTAL}
    return {name: view.clone() for name, view in network.views(torch.from_numpy(theta > 0)).items()}


@pytest.mark.parametrize(
    "net", [nn.Linear(50, 30), nn.Conv2d(8, 30, 3), nn.Conv2d(8, 32, 3, groups=4), nn.GRU(40, 20)], ids=str
)
def test_every_unit_keeps_as_many_weights_of_each_sign_and_about_half(net: nn.Module) -> None:
    network = MaskedNetwork(net, init="zero-sum")
    signs = network.views(network.weights(3).sign())
    for name, kept in kept_of(net, 3).items():
        if kept.ndim == 1:
            assert not kept.any()
            continue
        assert not (signs[name] * kept).flatten(1).sum(1).any()
        assert kept.float().mean() == pytest.approx(0.5, abs=0.06)


def test_which_weights_are_kept_is_drawn() -> None:
    kept, others = kept_of(nn.Linear(400, 300), 1)["weight"], kept_of(nn.Linear(400, 300), 2)["weight"]
    assert (kept == others).float().mean() == pytest.approx(0.5, abs=0.01)
    assert kept.float().mean(0).std() < 0.04  # no input is favoured: half of 300 units is ± 0.03


def test_units_of_few_weights_and_embeddings_keep_a_random_half_and_transposed_layers_too() -> None:
    net = nn.ModuleList([nn.Linear(3, 400), nn.Embedding(90, 16), nn.ConvTranspose1d(30, 20, 5)])
    half = kept_of(net, 5, "half")
    for name, kept in kept_of(net, 5).items():
        assert kept.equal(half[name]) or kept.ndim == 1


def test_a_row_of_one_sign_alone_is_not_dead() -> None:
    kept = kept_of(nn.Conv2d(1, 20_000, (2, 4)), 4)["weight"].flatten(1)  # of eight weights, 1 row in 128
    assert kept.any(1).float().mean() > 0.999
    assert 0.4 < kept.float().mean() < 0.5


def test_a_layer_is_sorted_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kept_of(nn.Linear(90, 70))["weight"]
    monkeypatch.setattr(start, "AT_ONCE", 1000)
    assert kept_of(nn.Linear(90, 70))["weight"].equal(whole)


def test_the_start_depends_on_the_seed_alone_in_every_process() -> None:
    theta = starting_theta(MaskedNetwork(build("conv4", (1, 8, 8), 10), init="zero-sum"), 42)
    # Golden: clients, servers and model files derive it from the seed, so it must never change.
    golden = "bc778dc6756d0bf2766b918c7b33130c18b50bd4b1bb3cb45e1d9fbee4a05181"
    assert hashlib.sha256(np.packbits(theta > 0).tobytes()).hexdigest() == golden


def test_behind_some_layers_inputs_still_differ() -> None:
    deep = nn.Sequential(*[module for _ in range(6) for module in (nn.Linear(300, 300), nn.ReLU())])
    x = torch.rand(50, 300, generator=torch.Generator().manual_seed(0))

    def alike(init: str) -> float:
        """Return the mean cosine of the outputs for two inputs."""
        network = MaskedNetwork(deep, init=init)
        y = network.masked_module(starting_theta(network, 3) > 0, 3, network.initial_stats())(x)
        y = nn.functional.normalize(y)
        return float((y @ y.T).mean())

    assert alike("zero-sum") < 0.4 < 0.8 < alike("half")
