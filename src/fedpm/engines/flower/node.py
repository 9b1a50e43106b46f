"""A client's work on a node of Flower's: what it is asked, what it answers, and what its node remembers.

Nothing here imports Flower, or torch before there is work: a node starts a process for every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedpm.errors import WireError

if TYPE_CHECKING:
    from fedpm.engines.base import Clients

Memory = dict[int, bytes]
"""What a node keeps of the last two rounds' broadcasts, by round: the clients of a node may be a round apart."""


@dataclass(frozen=True)
class Request:
    """A broadcast for one client, and the seconds that it has to answer."""

    client: int
    round: int
    limit: float
    broadcast: bytes


@dataclass(frozen=True)
class Answer:
    """A client's upload, or what kept it from making one."""

    payload: bytes = b""
    metrics: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    reason: str = ""


def hosted_clients(partition: int, partitions: int, total: int) -> list[int]:
    """Return the clients of a node, which is partition ``partition`` of ``partitions``."""
    return list(range(partition, total, partitions))


def answer(clients: Clients, request: Request, memory: Mapping[int, bytes]) -> tuple[Answer, Memory]:
    """Do a client's work, and return what its node keeps of the broadcast."""
    from fedpm.engines.base import Task

    last = max((round for round in memory if round < request.round), default=0)
    before = memory.get(last, b"")
    try:
        result = clients.run(request.round, Task(request.client, request.broadcast, before))
    except WireError as error:
        return Answer(fault=error.kind if error.kind == "lacks" else "error", reason=str(error)), dict(memory)
    latest = clients.method.remember(request.broadcast, request.round, before)
    previous = {last: before} if before else {}  # for other clients of this node in this round
    return Answer(result.payload, result.metrics), {**previous, request.round: latest} if latest else {}
