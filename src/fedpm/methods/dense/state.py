"""What the server of a dense method holds between rounds, and notes while one ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from fedpm.methods.averaging import Average
from fedpm.methods.base import Arrays
from fedpm.methods.relay import join, relay, split
from fedpm.methods.statistics import Floats
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

MAX_STEPS = 64
"""How many rounds ago a client may have been there and be sent what was added since."""


@dataclass(frozen=True)
class Past:
    """The full broadcast of the last round, ``before``, and what the rounds up to that one added, coded, oldest first.

    ``holders`` has each client that holds a broadcast on which one of these steps builds, with its round.
    """

    before: bytes = b""
    steps: tuple[bytes, ...] = ()
    holders: dict[int, int] = field(default_factory=dict)

    def then(self, before: bytes, step: bytes, clients: Iterable[int], round: int, most: int) -> Past:
        """Return the past after a round, which these clients answered; steps are kept up to ``most`` bytes together."""
        steps = (*self.steps, step)
        lengths = list(accumulate(map(len, reversed(steps))))[:MAX_STEPS]
        kept = sum(length < most for length in lengths)
        answered = {**self.holders, **dict.fromkeys(clients, round)}
        holders = {client: held for client, held in answered.items() if held > round - kept}
        return Past(before, steps[len(steps) - kept :], holders)

    def since(self, held: int | None, round: int) -> tuple[bytes, ...]:
        """Return the steps from the broadcast of round ``held`` to the one of ``round``; none if they do not reach.

        A client that holds none knows as much as that of round 1 said, which is a seed.
        """
        count = round - (held or 1)
        return self.steps[-count:] if 0 < count <= len(self.steps) else ()

    def to_arrays(self) -> Arrays:
        """Return it for a checkpoint."""
        return {
            "before": np.frombuffer(self.before, np.uint8),
            "past_steps": np.frombuffer(join(list(self.steps)), np.uint8),
            "holders": np.array(list(self.holders.items()), np.int64).reshape(-1, 2),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Past:
        """Return the past of a checkpoint."""
        steps = split(arrays["past_steps"].tobytes(), MAX_STEPS)
        return cls(arrays["before"].tobytes(), tuple(steps), dict(arrays["holders"].tolist()))


@dataclass(frozen=True)
class DenseState:
    """The server's state; after ``steps`` = 0 steps the weights are those of the seed.

    ``told`` are the weights that clients are given: the server's own, or what quantised steps led to. ``average`` is
    the mean of the last rounds, if there is one.
    """

    round: int
    steps: int
    weights: Vector
    stats: Vector
    told: Vector
    past: Past = field(default_factory=Past)
    average: Average | None = None

    @property
    def scored(self) -> Average:
        """Weights and statistics of the network that is scored and shipped."""
        return self.average or Average(self.weights, self.stats)


@dataclass(frozen=True)
class DenseUpdate:
    """A decoded upload, and the change as it was coded."""

    delta: Vector
    stats: Vector
    client: int = 0
    coded: bytes = b""


class Arrivals:
    """What is noted of the updates of a round while their changes are folded."""

    def __init__(self, network: MaskedNetwork, *, keep_uploads: bool) -> None:
        self._most = 4 * network.size  # bounds what the server keeps: the weights themselves are shorter
        self.clients: list[int] = []
        self.stats = Floats(network)
        self.uploads: bytes | None = b"" if keep_uploads else None

    def changes(self, updates: Iterable[DenseUpdate]) -> Iterator[Vector]:
        """Yield the changes."""
        for update in updates:
            self.clients.append(update.client)
            self.stats.add(update.stats)
            if self.uploads is not None:
                grown = self.uploads + relay(update.client, update.coded)
                self.uploads = grown if len(grown) < self._most else None
            yield update.delta
