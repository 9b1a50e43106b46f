"""The protocol of an engine, and the client side that every engine runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedpm.data.datasets import Shard
from fedpm.data.partition import Indices
from fedpm.methods.base import Algorithm, ClientResult
from fedpm.rng import Streams
from fedpm.training.local import threads


@dataclass(frozen=True)
class Task:
    """A broadcast for one client, and what a simulated client remembers of the round before."""

    client: int
    broadcast: bytes
    memory: bytes = b""


@dataclass(frozen=True)
class Clients:
    """The client side of an experiment: any client's work, wherever it runs."""

    algorithm: Algorithm[Any, Any]
    train: Shard
    parts: Sequence[Indices]
    streams: Streams
    threads: int

    def run(self, round: int, task: Task) -> ClientResult:
        """Answer a broadcast as one client."""
        shard = self.train.take(self.parts[task.client])
        with threads(self.threads):
            rng = self.streams.at(round, task.client)
            return self.algorithm.client_update(task.broadcast, shard, rng, task.memory)


@dataclass(frozen=True)
class Fault:
    """Why no reply of a client can be used: the word under which it is counted, and a sentence.

    ``resent`` counts what the client was sent beyond its broadcast; it is negative if that was not sent either.
    """

    kind: str
    reason: str
    resent: int = 0


@dataclass(frozen=True)
class Limits:
    """How many answers a round needs, and for how many seconds it waits for answers and for nodes."""

    quorum: int
    deadline: float
    patience: float


class Engine(Protocol):
    """Runs clients."""

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[tuple[int, ClientResult | Fault]]:
        """Give the clients their broadcasts and yield their replies in the order of ``tasks``.

        The order is fixed because sums of floats (norm statistics, dense updates) depend on it.
        """

    def close(self) -> None:
        """End what the engine started."""
