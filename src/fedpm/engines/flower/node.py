"""A client's work on a node of Flower's: what it is asked, what it answers, and what its node remembers.

Nothing here imports Flower, or torch before there is work: a node starts a process for every message.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedpm.errors import WireError

if TYPE_CHECKING:
    from fedpm.engines.base import Clients
    from fedpm.methods.base import ClientResult, Waiting


@dataclass(frozen=True)
class Memory:
    """What a node keeps: the last two rounds' broadcasts, by round, as its clients may be a round apart.

    ``waiting`` are those of its clients that are between two stages of a round, pickled, and ``columns`` the names of
    the server's, in their order, if its data are a table.
    """

    broadcasts: Mapping[int, bytes] = field(default_factory=dict)
    waiting: Mapping[int, bytes] = field(default_factory=dict)
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """A broadcast for one client, or in a later stage the next message, and the seconds that it has to answer.

    If ``score``, the client scores what it is sent, and does not train. ``mark`` stands for the server's columns, whose
    names are sent only to nodes that may not know them.
    """

    client: int
    round: int
    limit: float
    broadcast: bytes
    stage: int = 0
    score: bool = False
    mark: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A client's upload, or what kept it from making one."""

    payload: bytes = b""
    metrics: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    reason: str = ""


def mark_of(columns: Sequence[str]) -> str:
    """Return what tells columns of a table, in their order, from others; nothing if there are none."""
    return hashlib.blake2b(json.dumps([*columns]).encode(), digest_size=8).hexdigest() if columns else ""


def hosted_clients(partition: int, partitions: int, total: int) -> list[int]:
    """Return the clients of a node, which is partition ``partition`` of ``partitions``."""
    return list(range(partition, total, partitions))


def answer(clients: Clients, request: Request, memory: Memory) -> tuple[Answer, Memory]:
    """Do a client's work, and return what its node keeps of it."""
    from fedpm.engines.base import Task

    if request.stage:
        return proceed(request, memory)
    last = max((round for round in memory.broadcasts if round < request.round), default=0)
    before = memory.broadcasts.get(last, b"")
    try:
        result = clients.run(request.round, Task(request.client, request.broadcast, before, score=request.score))
    except WireError as error:
        return Answer(fault=error.kind if error.kind == "lacks" else "error", reason=str(error)), memory
    latest = clients.method.remember(request.broadcast, request.round, before)
    previous = {last: before} if before else {}  # for other clients of this node in this round
    broadcasts = {**previous, request.round: latest} if latest else {}
    waiting = _waiting(memory, request.client, result)
    return Answer(result.payload, result.metrics), replace(memory, broadcasts=broadcasts, waiting=waiting)


def proceed(request: Request, memory: Memory) -> tuple[Answer, Memory]:
    """Answer a later message of a round; no data are needed for that, nor torch."""
    held = memory.waiting.get(request.client)
    if held is None:
        reason = f"its node holds nothing of the stages before {request.stage}: it was started anew"
        return Answer(fault="error", reason=reason), memory
    client: Waiting = pickle.loads(held)  # noqa: S301 - of this node's own memory
    gone = replace(memory, waiting=_waiting(memory, request.client))  # also where it fails: a stage is tried once
    try:
        result = client.answer(request.broadcast)
    except WireError as error:
        return Answer(fault="error", reason=str(error)), gone
    return Answer(result.payload, result.metrics), replace(gone, waiting=_waiting(memory, request.client, result))


def _waiting(memory: Memory, client: int, result: ClientResult | None = None) -> dict[int, bytes]:
    """Return which clients wait for the next stage after one of them did something."""
    others = {other: held for other, held in memory.waiting.items() if other != client}
    if result is None or result.waiting is None:
        return others
    return {**others, client: pickle.dumps(result.waiting)}
