"""Training of masks over random noise, which is added to weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local, Trained, fit
from fedpm.training.noise import Noise
from fedpm.training.optimiser import Optimiser
from fedpm.wire.theta import Vector


class MaskedChange:
    """A change u of weights w that the network sees through noise n, as masks m of {``lowest``, 1} allow.

    In step t of T each weight is, with probability t/T, w + n·m with m sampled so that n·m is on average u, and
    otherwise w + u; u is cut to what masks can reach. The gradient goes straight through to u, uncut.
    """

    def __init__(self, network: MaskedNetwork, start: torch.Tensor, noise: torch.Tensor, lowest: int) -> None:
        self._start, self._noise, self._lowest = start, noise, lowest
        self._seen = start.clone()
        self.change = torch.zeros_like(start)
        self.changes = network.views(self.change)
        self.weights = {name: view.detach().requires_grad_() for name, view in network.views(self._seen).items()}

    def sample(self, draws: Noise, progress: float) -> None:
        """Fill ``weights``, a share ``progress`` of them by sampled masks."""
        size, low = len(self._start), self._lowest
        reached = (self.change / self._noise).clamp_(low, 1)
        ones = draws.uniform(size).mul_(1 - low).add_(low) < reached  # P(m = 1) = (u/n − low)/(1 − low)
        mask = torch.where(draws.uniform(size) < progress, torch.where(ones, 1.0, float(low)), reached)
        torch.addcmul(self._start, mask, self._noise, out=self._seen)

    def backpropagate(self) -> None:
        """Hand the gradients of ``weights`` to ``changes``."""
        for name, weight in self.weights.items():
            self.changes[name].grad, weight.grad = weight.grad, None


class _MaskedSteps:
    """So many steps of an optimiser on a change, the last one on masks alone."""

    def __init__(self, masked: MaskedChange, draws: Noise, count: int, optimiser: Optimiser) -> None:
        self._masked, self._draws, self._count, self._optimiser = masked, draws, count, optimiser
        self._step = 0
        self.weights = masked.weights

    def prepare(self) -> None:
        """Sample the weights."""
        self._step += 1
        self._masked.sample(self._draws, self._step / self._count)

    def learn(self) -> None:
        """Move the change."""
        self._masked.backpropagate()
        self._optimiser.step()


@dataclass(frozen=True)
class MaskedNoiseTrainer:
    """Trains weights whose change masked noise can express; ``noise`` is given the streams that name round and client.

    Masks are of {``lowest``, 1}, and ``lowest`` is 0 or −1.
    """

    network: MaskedNetwork
    local: Local
    noise: Callable[[Streams], Vector]
    lowest: int

    def train(self, start: Vector, *, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples; the values are w + u, not yet masked."""
        how = self.local
        noise = torch.from_numpy(self.noise(rng)).to(how.device)
        masked = MaskedChange(self.network, torch.tensor(start, device=how.device), noise, self.lowest)
        optimiser = how.optimiser_of(masked.changes.values(), rng.round, len(shard))
        steps = _MaskedSteps(masked, Noise(rng, "local masks", how.device), how.steps(len(shard)), optimiser)
        stats, figures = fit(self.network, steps, stats=stats, shard=shard, rng=rng, how=how)
        return Trained(start + masked.change.cpu().numpy(), stats, figures)
