"""Training on a client (Section 3.1.1, Algorithm 1).

One loop serves every method; what differs is how trainable values become weights.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch

from fedpm.data.datasets import Shard, to_input, to_target
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.evaluation import score
from fedpm.training.features import skipped
from fedpm.training.optimiser import Optimiser
from fedpm.training.task import Task
from fedpm.training.whitening import whiten
from fedpm.wire.theta import Vector

CPU = torch.device("cpu")
FASTEST = 1.12
"""The highest rate of a first round by rule: a step that jumps further is not corrected by the next."""


@dataclass(frozen=True)
class Local:
    """How a client trains.

    Args:
        epochs: how often it sees its examples in a round.
        batch_size: the most examples of a step.
        lr: the rate of a step in the first round; None for ``travel`` over steps^``exponent``, at ``most`` so.
        lr_decay: the factor of the rate, round after round.
        lr_fade: T; the rate falls as 1/√(1 + (round − 1)/T) too, which never stops learning; 0 if it does not.
        lr_warmup: the share of a round's steps over which the rate rises to its height: at first Adam knows the signs
            of gradients alone, and moves all values equally far.
        beta1: Adam's β1, the share of the mean gradient of earlier steps that a step keeps; None for a memory of a
            sixth of a round's steps.
        epsilon: Adam's ε as a share of a layer's gradients: a value whose gradients are small beside them moves less.
        whiten: whether the directions of each layer's gradient are evened out before the optimiser sees it.
        float_lr: the rate of Adam on parameters that are trained as floats beside the others.
        travel: how far a value goes in a round at the ruled rate: if all steps agree with ``exponent`` 1, if they pull
            to and fro with ½.
        first: how far it must be able to go in the first round.
        forward: the network that a step of scores sees: ``"sampled"`` from θ, or ``"expected"``, weights times θ.
        gradient: the straight-through gradient of a sample, ``"theta"`` or ``"identity"``.
        optimiser: of weights.
        task: what it learns.
        lookahead: μ; a client starts ahead of what it is told, by μ of what the round before changed.
        logit_adjustment: τ; the local loss adds τ · log(the client's share of each class) to the logits.
        device: where it trains.
        precision: of the network's sums.
    """

    epochs: int
    batch_size: int
    lr: float | None
    lr_decay: float = 1.0
    lr_fade: float = 0.0
    lr_warmup: float = 0.0
    beta1: float | None = 0.9
    epsilon: float = 0.0
    whiten: bool = False
    float_lr: float = 0.001
    travel: float = 1.0
    most: float = 1.0
    exponent: float = 1.0
    first: float = 0.0
    forward: str = "sampled"
    gradient: str = "theta"
    optimiser: str = "adam"
    task: Task = field(default_factory=Task)
    lookahead: float = 0.0
    logit_adjustment: float = 0.0
    device: torch.device = CPU
    precision: torch.dtype = torch.float32

    def rate(self, round: int, examples: int) -> float:
        """Return the rate of a client with so many examples in a round: lr · lr_decay^(round − 1) / √(1 + …).

        With ``epsilon`` the ruled rate is higher: a value whose gradients are half as large as its layer's goes as far,
        but where few steps make the rate as high as it may be.
        """
        faded = math.sqrt(1 + (round - 1) / self.lr_fade) if self.lr_fade else 1.0
        steps = self.steps(examples)
        ruled = min(self.most * (1 + self.epsilon / 2), self.travel * (1 + 2 * self.epsilon) / steps**self.exponent)
        if round == 1:
            ruled = max(ruled, min(FASTEST, self.first / steps))
        start = ruled if self.lr is None else self.lr
        return start * self.lr_decay ** (round - 1) / faded

    def start(self, told: Vector, before: Vector | None) -> Vector:
        """Return where a client starts that is told values, and may know those ``before`` the last round.

        Steps of a client's optimiser forget what earlier rounds agreed on; this is the momentum between rounds.
        """
        if not self.lookahead or before is None:
            return told
        ahead: Vector = told + np.float32(self.lookahead) * (told - before)
        return ahead

    def optimiser_of(self, parameters: Iterable[torch.Tensor], round: int, examples: int) -> Optimiser:
        """Return what moves the parameters of a client with so many examples; fresh, for clients keep no state."""
        warmup = math.ceil(self.lr_warmup * self.steps(examples))
        rate, beta1 = self.rate(round, examples), self.memory(examples)
        return Optimiser(self.optimiser, parameters, rate, warmup=warmup, beta1=beta1, epsilon=self.epsilon)

    def memory(self, examples: int) -> float:
        """Return β1 of a client with so many examples: Adam begins each round anew, and 0.9 looks back ten steps."""
        return min(0.9, max(0.7, 1 - 6 / self.steps(examples))) if self.beta1 is None else self.beta1

    def steps(self, examples: int) -> int:
        """Return the number of steps of a round."""
        return self.epochs * self.batches(examples)

    def batches(self, examples: int) -> int:
        """Return the number of steps of an epoch."""
        return -(-examples // self.batch_size)


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
) -> tuple[Vector, dict[str, float]]:
    """Run the local epochs.

    Returns:
        The norm layers' statistics, the mean loss of the last epoch (``train_loss``), and where the client holds out
        examples, its score on them with the first weights and with the last (``client_before``, ``client_after``).
    """
    network = network.tail(skipped(shard))
    figures: dict[str, float] = {}
    flat_stats = torch.tensor(stats, device=how.device)
    rest = network.surroundings(flat_stats)
    floats = {name: rest[name].detach().requires_grad_() for name in network.trained}
    rest |= floats
    beside = Optimiser("adam", floats.values(), how.float_lr)
    in_precision = partial(torch.autocast, how.device.type, how.precision, enabled=how.precision != torch.float32)
    network.train()
    with module_randomness(rng, how.device):
        for epoch in range(how.epochs):
            total = torch.zeros((), device=how.device)
            for x, y in _batches(shard, rng, epoch, how):
                steps.prepare()
                if shard.held is not None and not figures:
                    figures["client_before"] = _scored(network, steps, rest, shard.held, how)
                with in_precision():
                    loss = how.task.loss(_adjusted(network.forward(steps.weights, rest, x), shard, how), y)
                loss.backward()  # type: ignore[no-untyped-call]
                if how.whiten:
                    with in_precision():
                        whiten(steps.weights.values())
                steps.learn()
                beside.step()
                beside.zero_grad()
                total += loss.detach() * len(y)
        if shard.held is not None:
            steps.prepare()
            figures["client_after"] = _scored(network, steps, rest, shard.held, how)
    return flat_stats.cpu().numpy(), {"train_loss": float(total) / len(shard.y), **figures}


def _scored(network: MaskedNetwork, steps: Steps, rest: Mapping[str, torch.Tensor], held: Shard, how: Local) -> float:
    """Return the metric that decides, of the weights as they are now, on examples that a client holds out."""
    if not len(held):
        return math.nan
    network.net.eval()
    found = score(lambda x: network.forward(steps.weights, rest, x), held, how.device, how.task)
    network.train()
    return found.values[how.task.first.name]


def _batches(shard: Shard, rng: Streams, epoch: int, how: Local) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the examples in a fresh order, in batches as equal as possible and of at most batch_size.

    Equal batches waste no step on a remainder of one or two examples, on which norm layers would fail.
    """
    order = rng.permutation(f"batches of epoch {epoch}", len(shard.y))
    for chosen in np.array_split(order, how.batches(len(order))):
        yield to_input(shard.x[chosen], how.device), to_target(shard.y[chosen], how.device)


def _adjusted(logits: torch.Tensor, shard: Shard, how: Local) -> torch.Tensor:
    """Add τ · log(the client's share of each class), so that a class it lacks is not unlearned; one counts 0.01."""
    if not how.logit_adjustment:
        return logits
    shares = np.bincount(shard.y, minlength=logits.shape[1]).clip(0.01) / len(shard)
    return logits + torch.from_numpy(how.logit_adjustment * np.log(shares)).to(logits)


@contextmanager
def module_randomness(rng: Streams, device: torch.device) -> Iterator[None]:
    """Give modules that draw from torch's global generator (dropout) a stream of this round and client."""
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"):
        seed = rng.integer("module randomness")
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
