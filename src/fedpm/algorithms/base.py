"""The protocol of an algorithm: small functions over an explicit state, and only bytes between the two sides.

state --broadcast--> bytes --client_update--> bytes --decode, aggregate--> state
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import nn

from fedpm.data.datasets import Shard
from fedpm.rng import Streams


@dataclass(frozen=True)
class ClientResult:
    """What a client hands back: the bytes it sends, and figures for the log that are no part of the traffic."""

    payload: bytes
    metrics: dict[str, float] = field(default_factory=dict)


S = TypeVar("S")
U = TypeVar("U")


class Algorithm(Protocol[S, U]):
    """An algorithm with a state S and decoded updates U.

    A state is a frozen dataclass of integers and arrays with a field ``round``, the rounds done so far.
    """

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to make a network of a state; each is evaluated on validation data."""

    @property
    def final_modes(self) -> tuple[str, ...]:
        """Those of them that can be shipped; the final model is the best of these."""

    def init(self) -> S:
        """Return the state before the first round."""

    def broadcast(self, state: S) -> bytes:
        """Return the message that starts the next round."""

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams) -> ClientResult:
        """Train on a client's examples; ``rng`` holds the streams of this round and client."""

    def decode(self, state: S, client: int, payload: bytes) -> U:
        """Return what a client sent in answer to ``broadcast(state)``, or raise WireError."""

    def aggregate(self, state: S, updates: Iterable[U]) -> S:
        """Fold the updates one at a time into the next state."""

    def network(self, state: S, mode: str) -> nn.Module:
        """Return the global network, ready to evaluate."""
