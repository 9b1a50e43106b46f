"""Doing a client's work."""

from collections.abc import Mapping

from fedpm.engines.base import Clients, Task
from fedpm.engines.flower.work import Answer, Memory, Request
from fedpm.errors import WireError


def answer(clients: Clients, request: Request, memory: Mapping[int, bytes]) -> tuple[Answer, Memory]:
    """Do a client's work, and return what its node keeps of the broadcast."""
    last = max((round for round in memory if round < request.round), default=0)
    before = memory.get(last, b"")
    try:
        result = clients.run(request.round, Task(request.client, request.broadcast, before))
    except WireError as error:
        return Answer(fault=error.kind if error.kind == "lacks" else "error", reason=str(error)), dict(memory)
    kept = clients.algorithm.remember(request.broadcast, request.round, before)
    recent = {last: before} if before else {}  # for other clients of this node in this round
    return Answer(result.payload, result.metrics), {**recent, request.round: kept} if kept else {}
