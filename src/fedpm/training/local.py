"""Training on a client (Section 3.1.1, Algorithm 1).

One loop serves every algorithm; what differs is how trainable values become weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from fedpm.data.datasets import Shard, to_input
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.training.optimiser import Optimiser

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


class SampledWeights:
    """A client's scores s, and the weights ẇ that each step samples from them: θ = sigmoid(s), m ~ Bern(θ), ẇ = m ⊙ w.

    The gradient goes straight through the sample: ∂m/∂θ is taken as θ (the paper's "equal to the probability mask") or
    as 1 (``identity``), so that dL/ds = dL/dẇ · w · θ(1−θ) · (θ or 1).

    All vectors are made once, and network and optimiser see views of them: fresh memory would cost more than the sums.
    """

    def __init__(self, network: MaskedNetwork, frozen: torch.Tensor, theta: torch.Tensor, gradient: str) -> None:
        self._frozen = frozen
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
        self._sampled.mul_(self._frozen)

    def backpropagate(self) -> None:
        """Turn the gradients of ``weights`` into those of ``scores``."""
        self.slope()
        for name, weight in self.weights.items():
            self.scores[name].grad = None if weight.grad is None else weight.grad.mul_(self._slopes[name])
            weight.grad = None

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
    start = torch.from_numpy(theta).to(how.device)
    sampled = SampledWeights(network, weights.to(how.device), start, how.gradient)
    optimiser = Optimiser("adam", sampled.scores.values(), how.lr)  # fresh: clients keep no state
    noise = rng.noise("local masks", how.device)
    half = torch.tensor(0.5, device=how.device)

    def step() -> None:
        sampled.backpropagate()
        optimiser.step()

    def prepare() -> None:
        sampled.sample(half if threshold else noise.uniform(network.size))

    stats, loss = fit(network, sampled.weights, prepare, step, stats, shard, rng, how)
    return sampled.theta(), stats, loss


def train_weights(
    network: MaskedNetwork, start: Vector, stats: Vector, shard: Shard, rng: Streams, how: Local
) -> tuple[Vector, Vector, float]:
    """Train ordinary weights on one client's examples.

    Returns:
        The trained weights, the norm layers' statistics, and the mean loss of the last epoch.
    """
    flat = torch.tensor(start, device=how.device)
    weights = {name: view.detach().requires_grad_() for name, view in network.views(flat).items()}
    optimiser = Optimiser(how.optimiser, weights.values(), how.lr)
    stats, loss = fit(network, weights, optimiser.zero_grad, optimiser.step, stats, shard, rng, how)
    return flat.cpu().numpy(), stats, loss


def fit(
    network: MaskedNetwork,
    weights: Mapping[str, torch.Tensor],
    prepare: Callable[[], object],
    step: Callable[[], object],
    stats: Vector,
    shard: Shard,
    rng: Streams,
    how: Local,
) -> tuple[Vector, float]:
    """Run the local epochs: ``prepare`` readies the weights, and once they have gradients ``step`` learns from those.

    Returns:
        The norm layers' statistics and the mean loss of the last epoch.
    """
    flat_stats = torch.tensor(stats, device=how.device)
    rest = network.surroundings(flat_stats)
    network.net.train()
    with module_randomness(rng, how.device):
        for epoch in range(how.epochs):
            total = torch.zeros((), device=how.device)
            for x, y in _batches(shard, rng, epoch, how):
                prepare()
                with torch.autocast(how.device.type, how.precision, enabled=how.precision != torch.float32):
                    loss = F.cross_entropy(network.forward(weights, rest, x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                step()
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
def module_randomness(rng: Streams, device: torch.device) -> Iterator[None]:
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
