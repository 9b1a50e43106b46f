"""Training on a client (Section 3.1.1, Algorithm 1).

One loop serves every method; what differs is how trainable values become weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from fedpm.data.datasets import Shard, to_input
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.wire.theta import Vector

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Local:
    """How a client trains."""

    epochs: int
    batch_size: int
    lr: float
    lr_decay: float = 1.0
    gradient: str = "theta"
    optimiser: str = "adam"
    device: torch.device = CPU
    precision: torch.dtype = torch.float32

    def at(self, round: int) -> "Local":
        """Return how a client trains in a round: with lr · lr_decay^(round − 1)."""
        return replace(self, lr=self.lr * self.lr_decay ** (round - 1))


@dataclass(frozen=True)
class Trained:
    """What a client learned: θ_k or weights, the norm layers' statistics, and figures that may leave the client."""

    values: Vector
    stats: Vector
    metrics: dict[str, float] = field(default_factory=dict)


class Steps(Protocol):
    """What a loop trains: weights that are made ready before each batch, and learn from their gradients after it."""

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by name, which gather gradients."""

    def prepare(self) -> None:
        """Make the weights ready for a batch."""

    def learn(self) -> None:
        """Take a step along the gradients of the weights."""


def fit(
    network: MaskedNetwork, steps: Steps, *, stats: Vector, shard: Shard, rng: Streams, how: Local
) -> tuple[Vector, float]:
    """Run the local epochs.

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
                steps.prepare()
                with torch.autocast(how.device.type, how.precision, enabled=how.precision != torch.float32):
                    loss = F.cross_entropy(network.forward(steps.weights, rest, x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                steps.learn()
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
