"""Whitened gradients keep their length and their directions, and have these more alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local
from fedpm.training.weights import WeightTrainer
from fedpm.training.whitening import WIDEST, whiten, whitened
from tests.small import small_net


def matrix(rows: int, columns: int, falling: float = 0.7) -> torch.Tensor:
    """Return a matrix whose singular values fall by a factor, in random directions."""
    rng = torch.Generator().manual_seed(0)
    width = min(rows, columns)
    left, right = (torch.linalg.qr(torch.randn(size, width, generator=rng)).Q for size in (rows, columns))
    values = torch.tensor([falling**place for place in range(width)])
    made: torch.Tensor = left * values @ right.T
    return made


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return what is there for sure."""
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize(("rows", "columns"), [(8, 20), (20, 8), (8, 8), (1, 5)])
def test_directions_stay_and_are_more_alike(rows: int, columns: int) -> None:
    given = matrix(rows, columns)
    found = whitened(given)
    assert found.norm().item() == pytest.approx(given.norm().item(), rel=1e-5)
    left, before, right = torch.linalg.svd(given, full_matrices=False)
    turned = left.T @ found @ right.T
    after = turned.diagonal()
    assert (turned - torch.diag(after)).abs().max() < 1e-4 * given.norm()
    assert (after > 0).all()
    if len(after) > 1:
        assert after.max() / after.min() < 0.25 * before.max() / before.min()


def test_a_matrix_and_its_transpose_are_whitened_alike() -> None:
    given = matrix(6, 15)
    assert torch.allclose(whitened(given.T), whitened(given).T, atol=1e-6)


def test_zeros_stay_zeros_and_what_diverged_is_not_hidden() -> None:
    assert torch.equal(whitened(torch.zeros(3, 4)), torch.zeros(3, 4))
    assert whitened(torch.full((3, 4), torch.nan)).isnan().all()


def test_vectors_and_very_wide_layers_stay_as_they_are() -> None:
    shapes = [(7,), (WIDEST + 1, WIDEST + 2), (4, 2, 3, 3), (5, 3)]
    parameters = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    gradients = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes]
    for parameter, gradient in zip(parameters[:3], gradients, strict=False):
        parameter.grad = gradient.clone()
    whiten(parameters)
    same = [
        torch.equal(gradient_of(parameter), gradient)
        for parameter, gradient in zip(parameters, gradients[:3], strict=False)
    ]
    assert same == [True, True, False]
    assert gradient_of(parameters[2]).shape == shapes[2]
    assert parameters[3].grad is None


def test_a_step_of_sgd_moves_along_the_whitened_gradient() -> None:
    network = MaskedNetwork(small_net())
    rng = np.random.default_rng(0)
    shard = Shard(rng.normal(size=(20, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 20))
    plain = Local(epochs=1, batch_size=20, lr=1.0, optimiser="sgd")
    start = network.weights(0).numpy()

    def moved(how: Local) -> dict[str, torch.Tensor]:
        trainer = WeightTrainer(network, how)
        values = trainer.train(start, stats=network.initial_stats(), shard=shard, rng=Streams(1).at(1, 0)).values
        return network.views(torch.from_numpy(values - start))

    before, after = moved(plain), moved(replace(plain, whiten=True))
    for name, change in before.items():
        expected = whitened(change) if change.dim() > 1 else change
        assert torch.allclose(after[name], expected, atol=2e-3 * float(change.norm())), name
    assert any(not torch.allclose(after[name], change, atol=1e-3) for name, change in before.items())


def test_layers_of_any_kind_can_be_whitened() -> None:
    layers = nn.ModuleList([nn.Conv1d(3, 5, 2), nn.ConvTranspose2d(3, 5, 2), nn.Embedding(9, 4), nn.GRU(3, 4)])
    for parameter in layers.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [gradient_of(parameter).norm() for parameter in layers.parameters()]
    whiten(layers.parameters())
    after = [gradient_of(parameter).norm() for parameter in layers.parameters()]
    assert torch.allclose(torch.stack(after), torch.stack(before), rtol=1e-4)
    assert all(gradient_of(parameter).shape == parameter.shape for parameter in layers.parameters())
