"""Clients of several experiments behind one engine: worker processes take seconds to start, each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from fedpm.engines.base import Clients, Task
from fedpm.methods.base import ClientResult


@dataclass(frozen=True)
class Several:
    """Client ``i`` is client ``i mod each`` of experiment ``i // each``."""

    experiments: Sequence[Clients]
    each: int

    def as_one(self) -> Clients:
        return cast(Clients, self)

    def run(self, round: int, task: Task) -> ClientResult:
        number, client = divmod(task.client, self.each)
        return self.experiments[number].run(round, replace(task, client=client))
