"""Training of scores of which each layer keeps the highest (edge-popup, Ramanujan et al. 2020)."""

from dataclasses import dataclass

import torch

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local, Trained, fit
from fedpm.training.optimiser import Optimiser
from fedpm.wire.theta import Vector


class _RankedSteps:
    """Steps of Adam on the scores, each with the frozen weights that these keep; the gradient goes straight through."""

    def __init__(
        self,
        network: MaskedNetwork,
        scores: dict[str, torch.Tensor],
        frozen: torch.Tensor,
        kept: list[int],
        optimiser: Optimiser,
    ) -> None:
        self._kept, self._optimiser, self.scores = kept, optimiser, scores
        self._frozen = network.views(frozen)
        self._seen = network.views(torch.empty_like(frozen))
        self.weights = {name: view.detach().requires_grad_() for name, view in self._seen.items()}

    def prepare(self) -> None:
        """Fill the weights with those that are kept."""
        for kept, (name, score) in zip(self._kept, self.scores.items(), strict=True):
            torch.mul(self._frozen[name], top(score, kept), out=self._seen[name])

    def learn(self) -> None:
        """Move the scores."""
        for name, weight in self.weights.items():
            self.scores[name].grad = None if weight.grad is None else weight.grad.mul_(self._frozen[name])
            weight.grad = None
        self._optimiser.step()


def top(scores: torch.Tensor, kept: int) -> torch.Tensor:
    """Return which scores are among the ``kept`` highest."""
    if kept >= scores.numel():
        return torch.ones_like(scores, dtype=torch.bool)
    return scores > torch.kthvalue(scores.flatten(), scores.numel() - kept).values


@dataclass(frozen=True)
class RankTrainer:
    """Trains scores; of layer l the ``kept[l]`` highest keep their weight."""

    network: MaskedNetwork
    local: Local
    kept: list[int]

    def train(self, start: Vector, *, frozen: torch.Tensor, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples; the values are scores."""
        how = self.local
        scores = torch.tensor(start, device=how.device)
        views = self.network.views(scores)
        optimiser = how.optimiser_of(views.values(), rng.round, len(shard))
        steps = _RankedSteps(self.network, views, frozen.to(how.device), self.kept, optimiser)
        stats, figures = fit(self.network, steps, stats=stats, shard=shard, rng=rng, how=how)
        return Trained(scores.cpu().numpy(), stats, figures)
