"""Requests and answers as Flower's messages, and what a node remembers in its Flower context."""

from dataclasses import fields
from secrets import token_bytes
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpm.engines.flower.node import Answer, Memory, Request, hosted_clients
from fedpm.errors import EngineError

RECORD = "fedpm"
_WAITING = "waiting "  # before the number of a client in the names of a node's memory
MAX_REASON = 400
"""Characters of a reason, at most."""


def _content(**values: Any) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord(values)})


def _question(**values: Any) -> RecordDict:
    """Return content of which nobody can guess the hash: with that, any registered node could reply in its stead."""
    return _content(**values, nonce=token_bytes(16))


def write_query(node: int, ttl: float) -> Message:
    """Return the message that asks a node which clients it hosts."""
    return Message(_question(), node, "query", ttl=ttl)


def write_request(request: Request, node: int, ttl: float) -> Message:
    """Return the message that gives a client its broadcast."""
    values = {**vars(request), "columns": list(request.columns)}
    return Message(_question(**values), node, "train", ttl=ttl, group_id=str(request.round))


def read_request(message: Message) -> Request:
    """Return what the server asks for."""
    values: Any = message.content[RECORD]
    read = {field.name: values[field.name] for field in fields(Request)}
    return Request(**{**read, "columns": tuple(read["columns"])})


def write_answer(message: Message, answer: Answer) -> Message:
    """Return a client's answer to a message."""
    if answer.fault:
        return Message(_content(fault=answer.fault, reason=answer.reason[:MAX_REASON]), reply_to=message)
    return Message(_content(payload=answer.payload, **answer.metrics), reply_to=message)


def write_hosted(message: Message, clients: list[int]) -> Message:
    """Return which clients a node hosts, as its answer to a query."""
    return Message(_content(clients=clients), reply_to=message)


def clients_of(context: Context, total: int) -> list[int]:
    """Return the clients of a node, by its node config: partition-id, partition-id + num-partitions, and so on."""
    partition, partitions = (context.node_config.get(key) for key in ("partition-id", "num-partitions"))
    if type(partition) is not int or type(partitions) is not int or not 0 <= partition < partitions:
        raise EngineError(
            f"node config partition-id = {partition!r}, num-partitions = {partitions!r}: a node should be started with "
            "--node-config 'partition-id=0 num-partitions=2', the first counted from 0"
        )
    return hosted_clients(partition, partitions, total)


def recall(context: Context) -> Memory:
    """Return what a node remembers of this run, and of no other."""
    record = context.state.get(RECORD)
    if not isinstance(record, ConfigRecord) or record.get("run") != str(context.run_id):
        return Memory()
    kept = {name: value for name, value in record.items() if isinstance(value, bytes)}
    waiting = {int(name.removeprefix(_WAITING)): value for name, value in kept.items() if name.startswith(_WAITING)}
    broadcasts = {int(name): value for name, value in kept.items() if not name.startswith(_WAITING)}
    columns: Any = record.get("columns", [])
    return Memory(broadcasts, waiting, tuple(columns))


def remember(context: Context, memory: Memory) -> None:
    """Keep what a node will need in the next stage or round."""
    kept: dict[str, Any] = {str(round): broadcast for round, broadcast in memory.broadcasts.items()}
    kept |= {f"{_WAITING}{client}": held for client, held in memory.waiting.items()}
    context.state[RECORD] = ConfigRecord({"run": str(context.run_id), "columns": list(memory.columns), **kept})
