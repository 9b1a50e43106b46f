"""Training on a client (Section 3.1.1, Algorithm 1).

One loop serves every algorithm; what differs is how trainable values become weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedpm.data.datasets import Shard, to_input
from fedpm.errors import ConfigError
from fedpm.masking import MaskedNetwork, Vector
from fedpm.rng import Streams

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Local:
    """How a client trains."""

    epochs: int
    batch_size: int
    lr: float
    gradient: str = "theta"
    optimiser: str = "adam"
    device: torch.device = CPU
    precision: torch.dtype = torch.float32


class SampleWeights(torch.autograd.Function):
    """θ = sigmoid(s), m ~ Bern(θ), ẇ = m ⊙ w, with a straight-through gradient through the sample.

    ∂m/∂θ is taken as θ (the paper's "equal to the probability mask") or as 1 (``identity``), so that
    dL/ds = dL/dẇ · w · θ(1−θ) · (θ or 1).
    """

    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, weights: torch.Tensor, uniform: torch.Tensor, gradient: str
    ) -> torch.Tensor:
        """Return the sampled weights for scores, frozen weights and uniform draws."""
        theta = torch.sigmoid(scores)
        ctx.save_for_backward(theta, weights)
        ctx.times_theta = gradient == "theta"
        return (uniform < theta) * weights

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of the scores."""
        theta, weights = ctx.saved_tensors
        slope = theta - theta * theta
        if ctx.times_theta:
            slope *= theta
        return slope.mul_(weights).mul_(grads[0]), None, None, None


def train_scores(
    network: MaskedNetwork,
    weights: torch.Tensor,
    theta: Vector,
    stats: Vector,
    shard: Shard,
    rng: Streams,
    how: Local,
    *,
    threshold: bool = False,
) -> tuple[Vector, Vector, float]:
    """Train the probability mask on one client's examples, starting from θ strictly inside (0, 1).

    Each step samples a mask, or takes 1[θ > 0.5] with ``threshold``.

    Returns:
        The trained θ, the norm layers' statistics, and the mean loss of the last epoch.
    """
    frozen = weights.to(how.device)
    scores = torch.logit(torch.from_numpy(theta).to(how.device)).requires_grad_()
    optimiser = torch.optim.Adam([scores], lr=how.lr, fused=True)  # fresh, so that clients keep no state
    noise = rng.noise("local masks", how.device)
    half = torch.tensor(0.5, device=how.device)

    def sample() -> torch.Tensor:
        uniform = half if threshold else noise.uniform(len(scores))
        sampled: torch.Tensor = SampleWeights.apply(scores, frozen, uniform, how.gradient)  # type: ignore[no-untyped-call]
        return sampled

    stats, loss = fit(network, sample, optimiser, stats, shard, rng, how)
    return torch.sigmoid(scores.detach()).cpu().numpy(), stats, loss


OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def train_weights(
    network: MaskedNetwork, start: Vector, stats: Vector, shard: Shard, rng: Streams, how: Local
) -> tuple[Vector, Vector, float]:
    """Train ordinary weights on one client's examples.

    Returns:
        The trained weights, the norm layers' statistics, and the mean loss of the last epoch.
    """
    weights = torch.tensor(start, device=how.device, requires_grad=True)
    optimiser = OPTIMISERS[how.optimiser]([weights], lr=how.lr, fused=True)
    stats, loss = fit(network, lambda: weights, optimiser, stats, shard, rng, how)
    return weights.detach().cpu().numpy(), stats, loss


def fit(
    network: MaskedNetwork,
    weights: Callable[[], torch.Tensor],
    optimiser: torch.optim.Optimizer,
    stats: Vector,
    shard: Shard,
    rng: Streams,
    how: Local,
) -> tuple[Vector, float]:
    """Run the local epochs; ``weights`` gives the network's flat weights anew at every step.

    Returns:
        The norm layers' statistics and the mean loss of the last epoch.
    """
    flat_stats = torch.tensor(stats, device=how.device)
    rest = network.surroundings(flat_stats)
    network.net.train()
    with _module_randomness(rng, how.device):
        for epoch in range(how.epochs):
            total = torch.zeros((), device=how.device)
            for x, y in _batches(shard, rng, epoch, how):
                with torch.autocast(how.device.type, how.precision, enabled=how.precision != torch.float32):
                    loss = F.cross_entropy(network.forward(weights(), rest, x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                optimiser.zero_grad()
                total += loss.detach() * len(y)
    return flat_stats.cpu().numpy(), float(total) / len(shard.y)


def _batches(shard: Shard, rng: Streams, epoch: int, how: Local) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the examples in a fresh order, in batches as equal as possible and of at most batch_size.

    Equal batches waste no step on a remainder of one or two examples, on which norm layers would fail.
    """
    order = rng.permutation(f"batches of epoch {epoch}", len(shard.y))
    for chosen in np.array_split(order, -(-len(order) // how.batch_size)):
        yield to_input(shard.x[chosen], how.device), torch.from_numpy(shard.y[chosen]).to(how.device)


@contextmanager
def _module_randomness(rng: Streams, device: torch.device) -> Iterator[None]:
    """Give modules that draw from torch's global generator (dropout) a stream of this round and client."""
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"):
        seed = rng.integer("module randomness")
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def choose_device(name: str) -> torch.device:
    """Return a device by name; ``auto`` takes CUDA when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device = {name!r}: cannot be used here ({reason}); auto and cpu always work") from None
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the training precision; ``auto`` takes bfloat16 only where the hardware computes in it.

    Elsewhere bfloat16 is emulated: ten times slower than float32 on a CPU with AVX2 alone.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())
    return torch.bfloat16 if native else torch.float32


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with a fixed number of threads: float sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
