"""The protocol of an engine, and the client side that every engine runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedpm.methods.base import ClientResult, Method
from fedpm.rng import Streams

if TYPE_CHECKING:
    from fedpm.data.datasets import Shard
    from fedpm.data.partition import Indices
    from fedpm.registry import Settings


@dataclass(frozen=True)
class Task:
    """A broadcast for one client, and what a simulated client remembers of the round before."""

    client: int
    broadcast: bytes
    memory: bytes = b""


@dataclass(frozen=True)
class Clients:
    """The client side of an experiment: any client's work, wherever it runs."""

    method: Method[Any, Any]
    train: Shard
    parts: Sequence[Indices]
    streams: Streams
    threads: int

    def run(self, round: int, task: Task) -> ClientResult:
        """Answer a broadcast as one client."""
        from fedpm.training.device import threads

        shard = self.train.take(self.parts[task.client])
        with threads(self.threads):
            rng = self.streams.at(round, task.client)
            return self.method.client_update(task.broadcast, shard, rng, task.memory)


@dataclass(frozen=True)
class Fault:
    """Why no answer of a client can be used: the word under which it is counted, and a sentence."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Reply:
    """What came of a client's task, and the bytes that really passed: ``sent`` down to it, ``received`` from it.

    ``expected`` is False of what belongs to an earlier round: it arrived late, and only its bytes count.
    """

    client: int
    answer: ClientResult | Fault
    sent: int
    received: int
    expected: bool = True


class Engine(Protocol):
    """Runs clients."""

    @property
    def quorum(self) -> int:
        """How many usable answers a round needs; 0 where no client can go missing."""

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Give the clients their broadcasts and yield their replies in the order of ``tasks``.

        The order is fixed because sums of floats (norm statistics, dense updates) depend on it.
        """

    def close(self) -> None:
        """End what the engine started."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an engine is started with: all clients N, clients of a round K, worker processes, the engine's settings."""

    clients: int
    per_round: int
    workers: int
    settings: Settings | None = None
