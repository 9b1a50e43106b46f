"""Clients that go missing without a fleet to lose them."""

from collections.abc import Collection, Iterator, Sequence

from fedpm.engines.base import Fault, Reply, Task
from fedpm.engines.inprocess import Sequential
from fedpm.experiment.build import Experiment


class Only:
    """An engine that hears of some clients and rounds only: what a fleet with faults should come to.

    Missing are (round, client), or (round, client, stage) where a client is silent in that stage of a round.
    """

    quorum = 0

    def __init__(self, experiment: Experiment, missing: Collection[tuple[int, ...]]) -> None:
        self.inner, self.missing = Sequential(experiment.clients), set(missing)

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        heard = [t for t in tasks if not {(round, t.client), (round, t.client, t.stage)} & self.missing]
        replies = {reply.client: reply for reply in self.inner.run(round, heard)}
        for task in tasks:
            yield replies.get(task.client, Reply(task.client, Fault("missing", ""), len(task.broadcast), 0))

    def close(self) -> None:
        pass
