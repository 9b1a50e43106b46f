"""The protocol of an algorithm: small functions over an explicit state, and only bytes between the two sides.

state --broadcast--> bytes --client_update--> bytes --decode, aggregate--> state
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import nn

from fedpm.data.datasets import Shard
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.wire.masks import Mask


@dataclass(frozen=True)
class Broadcast:
    """What the server sends, and the bits that an ideal coder would take for what is coded in it."""

    payload: bytes
    ideal_bits: float = 0.0


@dataclass(frozen=True)
class ClientResult:
    """What a client hands back: the bytes it sends, and figures for the log that are no part of the traffic.

    ``resent`` counts what it had to be sent beyond its broadcast, because it did not hold the one before.
    """

    payload: bytes
    metrics: dict[str, float] = field(default_factory=dict)
    resent: int = 0


S = TypeVar("S")
U = TypeVar("U")


class Algorithm(Protocol[S, U]):
    """An algorithm with a state S and decoded updates U.

    A state is a frozen dataclass of integers and arrays with a field ``round``, the rounds done so far.
    """

    @property
    def masked(self) -> MaskedNetwork:
        """The network, laid out as one flat vector."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The ways to make a network of a state; each is evaluated on validation data."""

    @property
    def final_modes(self) -> tuple[str, ...]:
        """Those of them that can be shipped; the final model is the best of these."""

    def init(self) -> S:
        """Return the state before the first round."""

    def broadcast(self, state: S, *, since: int | None = None) -> Broadcast:
        """Return the message that starts the next round, for a client that holds the one of round ``since`` or none."""

    def holders(self, state: S) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""

    def memory(self, state: S) -> bytes:
        """Return what a client that holds the broadcast of the round before keeps of it: what ``remember`` gave it.

        With it a simulated client reads every broadcast that builds on an earlier one; it skips what it need not know.
        """

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train on a client's examples; ``rng`` holds the client's own streams of this round."""

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return what a client keeps of a broadcast, to read brief ones later."""

    def decode(self, state: S, client: int, payload: bytes) -> U:
        """Return what a client sent in answer to ``broadcast(state)``, or raise WireError."""

    def aggregate(self, state: S, updates: Iterable[U]) -> S:
        """Fold the updates one at a time into the next state."""

    def mask(self, state: S, mode: str) -> Mask | Vector | None:
        """Return the global mask over the frozen weights, or None if the algorithm trains the weights themselves."""

    def network(self, state: S, mode: str) -> nn.Module:
        """Return the global network, ready to evaluate."""
