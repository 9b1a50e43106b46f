"""A training run's privacy: what it promises, what that costs, and when the budget is spent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedpm.data.datasets import Shard, to_input
from fedpm.errors import ConfigError
from fedpm.model.masking import MaskedNetwork
from fedpm.privacy.accounting import Cost, clip_for, noise_for
from fedpm.training.private import Private, steps_of_round

CLIP = 0.01
"""Gradients of examples are longer than this in the project's networks, so that each counts the same."""
ADJACENCY = {
    "example": "one example of one client is added or removed",
    "client": "one client holds its data, or none and then uploads a sample of the broadcast",
}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a run promises, in numbers.

    Args:
        unit: what it is about: ``"example"`` or ``"client"``.
        epsilon: the budget: training stops before it would be exceeded.
        delta: δ.
        clip: the ℓ2 bound of an example's gradient, or of a client's move of the scores.
        noise: multiplier of a step; 0 with unit ``client``.
        sampling_rate: the chance of each example to be in a step.
        steps: noisy steps of a client in a round.
        secret: whether clients draw from the operating system instead of the run's seed.
    """

    unit: str
    epsilon: float
    delta: float
    clip: float
    noise: float
    sampling_rate: float
    steps: int
    secret: bool

    @classmethod
    def settle(
        cls,
        *,
        unit: str,
        epsilon: float,
        delta: float,
        clip: float | None,
        noise: float | None,
        sampling_rate: float,
        epochs: int,
        most_rounds: int,
        secret: bool,
    ) -> "Guarantee":
        """Return the guarantee with the best clip and noise in place of None; it depends on no data.

        ``most_rounds`` is in how many rounds the client that is drawn most takes part.
        """
        steps = steps_of_round(epochs, sampling_rate)
        if unit == "client":
            noise, clip = 0.0, clip_for(epsilon, delta, most_rounds) if clip is None else clip
        if noise is None:
            noise = noise_for(epsilon, delta, steps * most_rounds, sampling_rate)
        return cls(
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            clip=CLIP if clip is None else clip,
            noise=noise,
            sampling_rate=sampling_rate,
            steps=steps,
            secret=secret,
        )

    @property
    def private(self) -> Private:
        """What clients do for it."""
        return Private(self.unit, self.clip, self.noise, self.sampling_rate)

    @cached_property
    def cost(self) -> Cost:
        """What a round costs a client."""
        if self.unit == "client":
            return Cost("client", self.delta, clip=self.clip)
        return Cost("example", self.delta, self.steps, self.noise, self.sampling_rate)

    def account(self, rounds: int, most: int) -> dict[str, Any]:
        """Return what all rounds cost the client that takes part in ``most`` of them, and ε on the way."""
        affordable = self.cost.rounds_within(self.epsilon, most)
        steps = {"steps of a round": self.steps, "sampling rate": self.sampling_rate, "noise multiplier": self.noise}
        marks = sorted({1, *(max(1, round(most * part / 4)) for part in range(1, 5)), max(1, affordable)})
        return {
            "protects": f"{self.unit}: {ADJACENCY[self.unit]}",
            **(steps if self.unit == "example" else {}),
            "clip": self.clip,
            "delta": self.delta,
            "budget": self.epsilon,
            "rounds of the client drawn most": f"{most} of {rounds}",
            "rounds it can take part in": affordable,
            "epsilon": self.cost.epsilon(affordable),
            "after": {str(mark): self.cost.epsilon(mark) for mark in marks},
        }


class Ledger:
    """What a run has spent: ε of the client that took part most. Without a guarantee it allows all and says nothing.

    A client's data are touched only in rounds that it takes part in, and those are counted whether or not its upload
    arrived. That clients are drawn at random is not used to claim less: the server sees who takes part.
    """

    def __init__(self, guarantee: Guarantee | None, rounds: Iterable[Sequence[int]] = ()) -> None:
        self._guarantee = guarantee
        self._rounds = Counter(client for clients in rounds for client in clients)

    def affords(self, clients: Sequence[int]) -> bool:
        """Return whether the budget allows a round with these clients."""
        guarantee = self._guarantee
        if guarantee is None:
            return True
        return guarantee.cost.epsilon(1 + max(self._rounds[client] for client in clients)) <= guarantee.epsilon

    def charge(self, clients: Sequence[int]) -> float | None:
        """Count a round, and return ε so far, if there is a guarantee."""
        self._rounds.update(clients)
        return None if self._guarantee is None else self._spent(self._guarantee)

    def statement(self) -> dict[str, Any]:
        """Return the guarantee, for summary and model file."""
        guarantee = self._guarantee
        if guarantee is None:
            return {}
        return {
            "privacy": {
                "unit": guarantee.unit,
                "adjacency": ADJACENCY[guarantee.unit],
                "epsilon": self._spent(guarantee),
                "delta": guarantee.delta,
                "budget": guarantee.epsilon,
                "secret": guarantee.secret,
            }
        }

    def _spent(self, guarantee: Guarantee) -> float:
        return guarantee.cost.epsilon(max(self._rounds.values(), default=0))


def check_private(guarantee: Guarantee, network: MaskedNetwork, train: Shard, sizes: Sequence[int]) -> None:
    """Refuse what would make the guarantee false in network and data, and a budget too small for one round."""
    unit = guarantee.unit
    remedy = "use conv4, conv6, conv10, or norm layers such as GroupNorm"
    if network.stats:
        raise ConfigError(
            f"privacy.unit = {unit!r}: what travels as floats ({', '.join(network.stats)}) would leave clients without "
            f"noise; {remedy}, and keep trained parameters as they are with frozen=[…]"
        )
    if unit == "example" and _mixes(network, train):
        raise ConfigError(
            "privacy.unit = 'example': the network's output for an example changes with the others in its batch, so "
            f"that the part of one example cannot be bounded; {remedy}"
        )
    count, what = (max(sizes), "examples of a client") if unit == "example" else (len(sizes), "clients")
    if guarantee.delta * count >= 1:
        raise ConfigError(
            f"privacy.delta = {guarantee.delta}: should be below 1/{count}, one over the {what}; "
            "otherwise publishing one of them outright would count as private"
        )
    if (first := guarantee.cost.epsilon(1)) > guarantee.epsilon:
        raise ConfigError(
            f"privacy.epsilon = {guarantee.epsilon}: one round alone costs {first:.3g}; "
            "raise privacy.noise, lower local.epochs or privacy.clip of a client, or leave them 'auto'"
        )


def _mixes(network: MaskedNetwork, train: Shard) -> bool:
    """Return whether an example's output in training depends on the examples beside it."""
    x = to_input(train.x[np.arange(4) % len(train)], torch.device("cpu"))
    weights = {name: view * 0.5 for name, view in network.views(network.weights(0)).items()}
    outputs = []
    network.train()
    for batch in (x, torch.cat([x[:1], x[1:].flip(-1) if x.is_floating_point() else x[1:].roll(1, -1)])):
        with torch.random.fork_rng([]), torch.inference_mode():
            torch.default_generator.manual_seed(0)
            rest = network.surroundings(torch.tensor(network.initial_stats()))
            outputs.append(network.forward(weights, rest, batch)[0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6)
