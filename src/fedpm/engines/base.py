"""The protocol of an engine, and the client side that every engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fedpm.errors import DataError
from fedpm.methods.base import ClientResult, Method, Waiting
from fedpm.rng import Streams

if TYPE_CHECKING:
    from fedpm.data.datasets import Shard
    from fedpm.data.partition import Indices
    from fedpm.registry import Settings
    from fedpm.training.task import Task as TrainingTask


@dataclass(frozen=True)
class Task:
    """A broadcast for one client, and what a simulated client remembers of the round before.

    In a later ``stage`` of the round it is the server's next message, which a simulated client answers by ``waiting``.
    """

    client: int
    broadcast: bytes
    memory: bytes = b""
    stage: int = 0
    waiting: Waiting | None = None
    score: bool = False
    """Whether to score what is sent, and not to train."""


@dataclass(frozen=True)
class Held:
    """What clients hold out: examples of each by number, the task by which they score, and whether they do in training.

    ``parts`` are ``"validation"`` and perhaps ``"test"``.
    """

    parts: Mapping[str, tuple[Shard, Sequence[Indices]]]
    task: TrainingTask
    in_training: bool

    def of(self, client: int) -> dict[str, Shard]:
        """Return the examples that a client holds out."""
        return {what: shard.take(parts[client]) for what, (shard, parts) in self.parts.items()}


@dataclass(frozen=True)
class Clients:
    """The client side of an experiment: any client's work, wherever it runs."""

    method: Method[Any, Any]
    train: Shard
    parts: Sequence[Indices]
    streams: Streams
    threads: int
    names: tuple[str, ...] = ()
    """What the data call the clients, if anything."""
    held: Held | None = None
    load: Callable[[int], Shard] | None = None
    """Returns what a client trains with, where nothing of it is here; ``parts`` are none then."""

    def run(self, round: int, task: Task) -> ClientResult:
        """Answer a broadcast, or a later message of the round, as one client."""
        if task.waiting is not None:
            return task.waiting.answer(task.broadcast)
        from fedpm.training.device import threads

        if task.score:
            from fedpm.engines.scoring import write_scores

            with threads(self.threads):
                return ClientResult(write_scores(self, round, task))
        shard = self.train.take(self.parts[task.client]) if self.load is None else self.load(task.client)
        if self.held is not None and self.held.in_training:
            shard = replace(shard, held=self.held.of(task.client)["validation"])
        rng = self.streams.at(round, task.client)
        try:
            with threads(self.threads):
                return self.method.client_update(task.broadcast, shard, rng, task.memory)
        except IndexError:
            from fedpm.model.tokens import unknown_token

            if told := unknown_token(self.method.network.net, shard.x[: len(shard)]):
                name = self.names[task.client] if self.names else task.client
                raise DataError(f"client {name}: {told}") from None
            raise


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

        The order is fixed because sums of floats (norm statistics, dense updates) depend on it. Where a round takes
        several stages, this is called for each of them.
        """

    def close(self) -> None:
        """End what the engine started."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an engine is started with: all clients N, clients of a round K, rounds, the engine's settings.

    ``workers`` is the number of worker processes; if ``at_leisure``, they start once they are worth it.
    """

    clients: int
    per_round: int
    rounds: int
    workers: int
    at_leisure: bool = False
    settings: Settings | None = None
