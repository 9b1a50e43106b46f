"""Training of scores: a probability mask over frozen weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.local import Local, Trained, fit
from fedpm.training.noise import Noise
from fedpm.training.optimiser import Optimiser
from fedpm.wire.theta import Vector


class SampledWeights:
    """A client's scores s, and the weights ẇ that each step samples from them: θ = sigmoid(s), m ~ Bern(θ), ẇ = m ⊙ w.

    ``expect`` takes their means θ ⊙ w instead, on which a client that takes few steps learns more in each.
    The gradient goes straight through the sample: ∂m/∂θ is taken as θ (the paper's "equal to the probability mask") or
    as 1 (``identity``), so that dL/ds = dL/dẇ · w · θ(1−θ) · (θ or 1). With ``signs`` a mask of 0 turns the sign of its
    weight: ẇ = ±w.

    All vectors are made once, and network and optimiser see views of them: fresh memory would cost more than the sums.
    """

    def __init__(
        self, network: MaskedNetwork, frozen: torch.Tensor, theta: torch.Tensor, gradient: str, *, signs: bool = False
    ) -> None:
        self._frozen, self._signs = frozen, signs
        self._times_theta = gradient == "theta"
        self._scores = torch.logit(theta)
        self._theta, self._sampled, self._slope = (torch.empty_like(frozen) for _ in range(3))
        self._slopes = network.views(self._slope)
        self.scores = network.views(self._scores)
        self.weights = {name: view.detach().requires_grad_() for name, view in network.views(self._sampled).items()}

    def sample(self, uniform: torch.Tensor) -> None:
        """Fill ``weights`` with those that uniform draws choose."""
        torch.sigmoid(self._scores, out=self._theta)
        torch.lt(uniform, self._theta, out=self._sampled)
        if self._signs:
            self._sampled.mul_(2).sub_(1)
        self._sampled.mul_(self._frozen)

    def expect(self) -> None:
        """Fill ``weights`` with their means, θ ⊙ w."""
        torch.sigmoid(self._scores, out=self._theta)
        torch.mul(self._theta, self._frozen, out=self._sampled)

    def backpropagate(self) -> None:
        """Make of the gradients of ``weights`` those of ``scores``."""
        self.slope()
        for name, weight in self.weights.items():
            self.scores[name].grad = None if weight.grad is None else self._slopes[name].mul_(weight.grad)

    def slope(self) -> torch.Tensor:
        """Return ∂ẇ/∂s at the last sample, one number a weight."""
        torch.mul(self._theta, self._theta, out=self._slope)
        torch.sub(self._theta, self._slope, out=self._slope)
        if self._times_theta:
            self._slope.mul_(self._theta)
        return self._slope.mul_(self._frozen)

    def move(self, gradient: torch.Tensor, length: float) -> None:
        """Step down a flat gradient of the scores; ``length`` is the root mean square of the step."""
        size = gradient.square().mean().sqrt().clamp(min=torch.finfo(gradient.dtype).tiny)
        self._scores.sub_(gradient * (length / size))

    def theta(self) -> Vector:
        """Return the probability mask."""
        return torch.sigmoid(self._scores).cpu().numpy()


def mask_sampler(sampled: SampledWeights, size: int, rng: Streams, how: Local) -> Callable[[], None]:
    """Return what makes the weights of a step: a fresh sample of them, or their means."""
    if how.forward == "expected":
        return sampled.expect
    noise = Noise(rng, "local masks", how.device)
    return lambda: sampled.sample(noise.uniform(size))


class _ScoreSteps:
    """Steps of Adam on the scores, each on weights that ``prepare`` makes of them."""

    def __init__(self, sampled: SampledWeights, prepare: Callable[[], None], optimiser: Optimiser) -> None:
        self._sampled, self._prepare, self._optimiser = sampled, prepare, optimiser
        self.weights = sampled.weights

    def prepare(self) -> None:
        """Make the weights."""
        self._prepare()

    def learn(self) -> None:
        """Move the scores."""
        self._sampled.backpropagate()
        self._optimiser.step(behind=[weight.grad for weight in self.weights.values()])
        for weight in self.weights.values():
            weight.grad = None


@dataclass(frozen=True)
class ScoreTrainer:
    """Trains a probability mask; with ``threshold`` a mask of 1[θ > 0.5], in every step and in the end.

    With ``signs`` a mask does not choose weights but turns their signs.
    """

    network: MaskedNetwork
    local: Local
    threshold: bool = False
    signs: bool = False

    def train(self, theta: Vector, *, frozen: torch.Tensor, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples, starting from θ strictly inside (0, 1)."""
        how = self.local
        start = torch.from_numpy(theta).to(how.device)
        sampled = SampledWeights(self.network, frozen.to(how.device), start, how.gradient, signs=self.signs)
        prepare = mask_sampler(sampled, self.network.size, rng, how)
        if self.threshold:
            prepare = partial(sampled.sample, torch.tensor(0.5, device=how.device))
        optimiser = how.optimiser_of(sampled.scores.values(), rng.round, len(shard))
        steps = _ScoreSteps(sampled, prepare, optimiser)
        stats, figures = fit(self.network, steps, stats=stats, shard=shard, rng=rng, how=how)
        trained = sampled.theta()
        if self.threshold and not np.isnan(trained).any():
            return Trained((trained > 0.5).astype(np.float32), stats, figures)
        return Trained(trained, stats, {**figures, "uplink_kl_bpp": divergence(trained, theta)})


def divergence(theta: Vector, start: Vector) -> float:
    """Return the mean of KL(Bern(θ_k) ‖ Bern(θ_g)) in bits: the least that any shared randomness could send."""
    p, q = torch.from_numpy(theta), torch.from_numpy(start)
    tiny = torch.finfo(p.dtype).tiny  # 0 · log(tiny) is 0, as it should be; logarithms are what takes time here
    bits = p * (p / q).clamp_(min=tiny).log2_() + (1 - p) * ((1 - p) / (1 - q)).clamp_(min=tiny).log2_()
    return float(bits.numpy().mean(dtype=np.float64))
