"""Changes of weights seen through masked noise."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import CPU
from fedpm.training.masked_noise import MaskedChange
from fedpm.training.noise import Noise

NETWORK = MaskedNetwork(nn.Linear(100, 50, bias=False))
START = torch.from_numpy(Streams(1).coarse_normal("weights", NETWORK.size))
NOISE = torch.from_numpy(Streams(1).coarse_normal("noise", NETWORK.size)) + 1e-4


@pytest.mark.parametrize("lowest", [0, -1])
def test_weights_are_more_and_more_masked(lowest: int) -> None:
    masked = MaskedChange(NETWORK, START.clone(), NOISE, lowest)
    masked.change.copy_(0.3 * NOISE)
    masked.change[:100] = -9 * NOISE[:100]
    draws = Noise(Streams(2), "masks", CPU)

    def seen(progress: float) -> np.ndarray:
        masked.sample(draws, progress)
        return ((masked.weights["weight"].detach().flatten() - START) / NOISE).numpy()

    np.testing.assert_allclose(seen(0.0)[100:], 0.3, atol=0.01)
    np.testing.assert_allclose(seen(0.0)[:100], lowest, atol=0.01)
    whole = seen(1.0)
    assert np.isclose(whole, 1, atol=0.01)[100:].mean() == pytest.approx((0.3 - lowest) / (1 - lowest), abs=0.03)
    assert (np.isclose(whole, 1, atol=0.01) | np.isclose(whole, lowest, atol=0.01)).all()
    assert np.isclose(seen(0.25), 0.3, atol=0.01)[100:].mean() == pytest.approx(0.75, abs=0.03)


def test_the_gradient_goes_straight_through_to_the_change() -> None:
    masked = MaskedChange(NETWORK, START.clone(), NOISE, 0)
    masked.change.copy_(-9 * NOISE)  # out of reach, where a gradient through the cut would be 0
    masked.sample(Noise(Streams(2), "masks", CPU), 0.5)
    (3 * masked.weights["weight"]).sum().backward()
    masked.backpropagate()
    assert torch.equal(masked.changes["weight"].grad, torch.full((50, 100), 3.0))  # type: ignore[arg-type]
    assert masked.weights["weight"].grad is None
