"""Training of ordinary weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local, Trained, fit
from fedpm.training.optimiser import Optimiser
from fedpm.wire.theta import Vector


class _WeightSteps:
    """Steps of an optimiser on the weights themselves."""

    def __init__(self, weights: Mapping[str, torch.Tensor], optimiser: Optimiser) -> None:
        self.weights = weights
        self._optimiser = optimiser

    def prepare(self) -> None:
        """Forget the last gradients."""
        self._optimiser.zero_grad()

    def learn(self) -> None:
        """Move the weights."""
        self._optimiser.step()


@dataclass(frozen=True)
class WeightTrainer:
    """Trains all weights."""

    network: MaskedNetwork
    local: Local

    def train(self, start: Vector, *, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples."""
        how = self.local
        flat = torch.tensor(start, device=how.device)
        weights = {name: view.detach().requires_grad_() for name, view in self.network.views(flat).items()}
        optimiser = how.optimiser_of(weights.values(), rng.round, len(shard))
        stats, figures = fit(self.network, _WeightSteps(weights, optimiser), stats=stats, shard=shard, rng=rng, how=how)
        return Trained(flat.cpu().numpy(), stats, figures)
