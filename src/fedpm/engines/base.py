"""The protocol of an engine, and the client side that every engine runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedpm.algorithms.base import Algorithm, ClientResult
from fedpm.data.datasets import Shard
from fedpm.data.partition import Indices
from fedpm.rng import Streams
from fedpm.training import threads


@dataclass(frozen=True)
class Clients:
    """The client side of an experiment: any client's work, wherever it runs."""

    algorithm: Algorithm[Any, Any]
    train: Shard
    parts: Sequence[Indices]
    streams: Streams
    threads: int

    def run(self, round: int, client: int, broadcast: bytes) -> ClientResult:
        """Answer a broadcast as one client."""
        shard = self.train.take(self.parts[client])
        with threads(self.threads):
            return self.algorithm.client_update(broadcast, shard, self.streams.at(round, client))


class Engine(Protocol):
    """Runs clients."""

    def run(self, round: int, broadcast: bytes, clients: Sequence[int]) -> Iterator[tuple[int, ClientResult]]:
        """Give the clients a broadcast and yield their replies in the order of ``clients``.

        The order is fixed because sums of floats (norm statistics, dense updates) depend on it.
        """

    def close(self) -> None:
        """End what the engine started."""
