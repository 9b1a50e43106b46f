"""The protocol of a method: small functions over an explicit state, and only bytes between the two sides.

state --broadcast--> bytes --client_update--> bytes --decode, aggregate--> state

Where a round takes several stages (``Staged``), messages go to and fro before the state is the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy.typing as npt

from fedpm.aggregation.base import Aggregator
from fedpm.errors import WireError
from fedpm.registry import Settings
from fedpm.rng import Streams
from fedpm.wire.coders.base import Coding
from fedpm.wire.masks import Mask, Signs
from fedpm.wire.theta import Vector

if TYPE_CHECKING:  # parts are imported to list them, and torch takes a second
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.local import Local
    from fedpm.training.private import Private

DIVERGED = 0
"""The form of an upload that holds nothing, because training ended in values that are not finite."""


def check_form(form: int, wanted: int, others: str) -> None:
    """Raise WireError for an upload that says that training diverged, or is of another form, that of ``others``."""
    if form == DIVERGED:
        raise WireError(
            "the client's training diverged, so it sent nothing; lower local.lr, look at its data", "diverged"
        )
    if form != wanted:
        raise WireError(f"upload of form {form} instead of {wanted}{others}")


def per_round(settings: Mapping[str, Any]) -> int:
    """Return how many clients take part in a round, of all settings by key."""
    return int(settings["clients.sampled"] or round((settings["clients.rho"] or 1.0) * settings["clients.total"]))


Arrays = dict[str, npt.NDArray[Any]]
"""A state as a checkpoint holds it."""


@dataclass(frozen=True)
class Broadcast:
    """What the server sends, and the bits that an ideal coder would take for what is coded in it."""

    payload: bytes
    ideal_bits: float = 0.0


@dataclass(frozen=True)
class ClientResult:
    """What a client hands back: the bytes it sends, and figures for the log that are no part of the traffic.

    ``waiting`` is what it will answer the next message of this round with; it never goes to the server.
    """

    payload: bytes
    metrics: dict[str, float] = field(default_factory=dict)
    waiting: Waiting | None = None


class Waiting(Protocol):
    """A client between two stages of a round. It can be pickled, and needs neither method nor data to go on."""

    def answer(self, message: bytes) -> ClientResult:
        """Answer what the server sent, or raise WireError."""


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """What a method is built from; each takes what it needs.

    Args:
        network: the network, laid out as one flat vector.
        seed: of the run.
        local: how clients train.
        aggregator: folds the updates of a round.
        coding: codes masks; None for methods that send none.
        private: what clients do for differential privacy, if anything.
        per_round: clients of a round, K.
        clients: all clients, N.
        example: one input, of which the form counts, for methods that look at the network before training.
        held_out: what the server holds out, if anything.
        average: the share of the rounds so far whose mean is scored and shipped.
        tables: the tables of settings that the method's spec names, nothing in them ``auto`` that ``tuned`` settles.
    """

    network: MaskedNetwork
    seed: int
    local: Local
    aggregator: Aggregator
    coding: Coding | None = None
    private: Private | None = None
    per_round: int = 1
    clients: int = 1
    example: npt.NDArray[Any] | None = None
    held_out: Shard | None = None
    average: float = 0.0
    tables: Mapping[str, Settings] = field(default_factory=dict)


class Stages(Protocol):
    """The server's side of a round in several stages: ``receive`` what came of one, ``advance``; at last ``update``."""

    def receive(self, client: int, payload: bytes) -> None:
        """Take a client's message of this stage; anything else raises WireError."""

    def advance(self) -> dict[int, bytes]:
        """Return the next message for each client that is still in; none after the last stage."""

    def has(self, client: int) -> bool:
        """Tell whether what a client sent will count, whatever becomes of it now."""

    def update(self) -> Any:
        """Return what ``Method.aggregate`` takes: all of the round in one."""


@runtime_checkable
class Staged(Protocol):
    """What a method has, too, whose rounds take several stages."""

    def stages(self, state: Any) -> Stages:
        """Begin the round that the next broadcast starts."""


S = TypeVar("S")
U = TypeVar("U")


class Method(Protocol[S, U]):
    """A method with a state S and decoded updates U; a state has a field ``round``, the rounds done so far.

    A state may also have ``rejected``: the clients that the aggregator left out of the last round, each with a reason.
    """

    @property
    def network(self) -> MaskedNetwork:
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

    def whole(self, broadcast: bytes, round: int, memory: bytes) -> bytes:
        """Return a broadcast in a form that needs no past, for a client that turns out to remember none.

        ``memory`` is what one who holds the broadcast of the round before remembers.
        """

    def received(self, broadcast: bytes, round: int, memory: bytes = b"") -> S:
        """Return the state as a client knows it that was sent a broadcast, to make networks of."""

    def decode(self, state: S, client: int, payload: bytes) -> U:
        """Return what a client sent in answer to ``broadcast(state)``, or raise WireError."""

    def aggregate(self, state: S, updates: Iterable[U]) -> S:
        """Fold the updates one at a time into the next state."""

    def mask(self, state: S, mode: str) -> Mask | Signs | Vector | None:
        """Return the global mask over the frozen weights, or None if the method trains the weights themselves."""

    def module(self, state: S, mode: str) -> nn.Module:
        """Return the global network, ready to evaluate."""

    def stats(self, state: S) -> Vector:
        """Return the norm layers' statistics."""

    def to_arrays(self, state: S) -> Arrays:
        """Return a state for a checkpoint."""

    def from_arrays(self, arrays: Arrays) -> S:
        """Return the state that ``to_arrays`` gave; raises KeyError where arrays are missing."""
