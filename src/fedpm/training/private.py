"""Training on a client with differential privacy.

``example``: DP-SGD on the scores. Each step takes every example with the same chance, clips each example's gradient in
ℓ2, adds Gaussian noise to the sum, and steps along it. What follows, the Bernoulli upload too, is post-processing.

``client``: ordinary training, then the move of the scores is clipped in ℓ2. The Bernoulli upload itself is the release.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.func import grad, vmap

from fedpm.data.datasets import Shard, to_input, to_target
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.features import skipped
from fedpm.training.local import Local, Trained, module_randomness
from fedpm.training.losses import Loss, cross_entropy
from fedpm.training.scores import SampledWeights, ScoreTrainer, divergence, mask_sampler
from fedpm.wire.theta import Vector

_GRADIENTS = 2**23
"""Floats of per-example gradients in memory at once; more is not faster."""
_EDGE = 1e-6


@dataclass(frozen=True)
class Private:
    """What a client does to keep its examples, or all of them together, private.

    Args:
        unit: what the guarantee is about: ``"example"`` or ``"client"``.
        clip: the ℓ2 bound of an example's gradient, or of a client's move of the scores.
        noise: standard deviation of the noise on a sum of gradients, in units of ``clip``; 0 with unit ``client``.
        sampling_rate: the chance of each example to be in a step.
    """

    unit: str
    clip: float
    noise: float
    sampling_rate: float


def steps_of_round(epochs: int, sampling_rate: float) -> int:
    """Return how many noisy steps a client takes in a round; it does not depend on the client's data."""
    return epochs * max(1, round(1 / sampling_rate))


@dataclass(frozen=True)
class PrivateScoreTrainer:
    """Trains a probability mask that is private itself (example), or ready to be sampled (client).

    Statistics of norm layers stay as they were, and what is measured on the examples themselves stays on the client.
    """

    network: MaskedNetwork
    local: Local
    private: Private

    def train(self, theta: Vector, *, frozen: torch.Tensor, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples, starting from θ strictly inside (0, 1)."""
        if self.private.unit == "example":
            trained = train_noisy_scores(
                self.network, frozen, theta, shard=shard, rng=rng, how=self.local, private=self.private
            )
            return Trained(trained, stats, {"uplink_kl_bpp": divergence(trained, theta)})
        ordinary = ScoreTrainer(self.network, self.local)
        initial = self.network.initial_stats()
        moved = ordinary.train(theta, frozen=frozen, stats=initial, shard=shard, rng=rng).values
        return Trained(clip_move(theta, moved, self.private.clip), stats)


def clip_move(start: Vector, trained: Vector, bound: float) -> Vector:
    """Return θ whose scores, logit θ, are at most ``bound`` away from those of ``start`` in ℓ2."""
    first = _logit(start)
    move = _logit(trained) - first
    length = float(np.linalg.norm(move))
    scores = first + move * (bound / max(length, bound))
    return (1 / (1 + np.exp(-scores))).astype(np.float32)


def _logit(theta: Vector) -> npt.NDArray[np.float64]:
    inner = np.nan_to_num(theta.astype(np.float64), nan=0.5).clip(_EDGE, 1 - _EDGE)
    return np.asarray(np.log(inner) - np.log1p(-inner))


def train_noisy_scores(
    network: MaskedNetwork,
    weights: torch.Tensor,
    theta: Vector,
    *,
    shard: Shard,
    rng: Streams,
    how: Local,
    private: Private,
) -> Vector:
    """Train the probability mask on clipped and noised gradients (DP-SGD).

    A step moves the scores by ``lr`` in the root mean square, whatever clip and noise are; the noised gradient alone
    decides. Noise is the same in every coordinate, so that Adam's scaling of each finds nothing, and its running means
    weigh the first steps more than the last, which loses signal: plain steps learned faster.
    """
    network = network.tail(skipped(shard))
    start = torch.from_numpy(theta).to(how.device)
    sampled = SampledWeights(network, weights.to(how.device), start, how.gradient)
    prepare = mask_sampler(sampled, network.size, rng, how)
    rest = network.surroundings(torch.tensor(network.initial_stats(), device=how.device))
    network.train()
    with module_randomness(rng, how.device):
        for step in range(steps_of_round(how.epochs, private.sampling_rate)):
            prepare()
            chosen = rng.fractions(f"batch of step {step}", len(shard)) < private.sampling_rate
            total = torch.zeros(network.size, device=how.device)
            for x, y in _chunks(shard, np.flatnonzero(chosen), network.size, how.device):
                total += clipped_sum(network, sampled, rest, x=x, y=y, bound=private.clip, loss=how.task.loss)
            noise = torch.from_numpy(rng.normal(f"noise of step {step}", network.size)).to(how.device)
            total.div_(private.clip).add_(noise, alpha=private.noise)
            sampled.move(total, how.rate(rng.round, 1))  # which must not tell how many examples there are
    return sampled.theta()


def clipped_sum(
    network: MaskedNetwork,
    sampled: SampledWeights,
    rest: Mapping[str, torch.Tensor],
    *,
    x: torch.Tensor,
    y: torch.Tensor,
    bound: float,
    loss: Loss = cross_entropy,
) -> torch.Tensor:
    """Return the sum over examples of the gradient of the scores, each clipped to ``bound`` in ℓ2, as a flat vector.

    The gradient of a score is that of its weight times a slope that all examples share. An example whose gradient is
    not finite adds nothing.
    """

    def alone(weights: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(network.forward(weights, rest, x[None]), y[None])

    weights = {name: weight.detach() for name, weight in sampled.weights.items()}
    gradients = vmap(grad(alone), (None, 0, 0), randomness="different")(weights, x, y)
    slopes = network.views(sampled.slope())
    each = [gradients[name].mul_(slope).flatten(1) for name, slope in slopes.items()]
    lengths = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in each]).norm(dim=0)
    factors = (bound / lengths).clamp(max=1.0)
    bad = ~torch.isfinite(lengths)
    if bad.any():
        factors[bad] = 0
        for part in each:
            part[bad] = 0
    return torch.cat([factors @ part for part in each])


def check_alone(network: MaskedNetwork, shard: Shard, loss: Loss, called: str) -> None:
    """Refuse a loss whose gradient torch cannot compute for each example of a batch."""
    weights, device = network.weights(0), torch.device("cpu")
    sampled = SampledWeights(network, weights, torch.full((network.size,), 0.5), "theta")
    sampled.sample(torch.rand(network.size, generator=torch.Generator().manual_seed(0)))
    rest = network.surroundings(torch.tensor(network.initial_stats()))
    x, y = next(_chunks(shard, np.arange(min(2, len(shard))), network.size, device))
    try:
        clipped_sum(network, sampled, rest, x=x, y=y, bound=1.0, loss=loss)
    except Exception as error:  # of a function of the caller's own
        raise ConfigError(
            f"privacy.unit = 'example': the gradient of task.loss = {called!r} cannot be computed for each example "
            f"({str(error).splitlines()[0]}); use a loss of torch's operations alone"
        ) from None


def _chunks(
    shard: Shard, chosen: npt.NDArray[np.intp], size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the chosen examples, as many at once as memory for their gradients allows."""
    count = max(1, _GRADIENTS // size)
    for start in range(0, len(chosen), count):
        part = chosen[start : start + count]
        yield to_input(shard.x[part], device), to_target(shard.y[part], device)
