"""Requests and answers as Flower's messages, and what a node remembers in its Flower context."""

from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpm.engines.flower.work import Answer, Memory, Request, hosted
from fedpm.errors import EngineError

RECORD = "fedpm"
LONGEST = 400
"""Characters of a reason, at most."""


def content(**values: Any) -> RecordDict:
    """Return the content of a message."""
    return RecordDict({RECORD: ConfigRecord(values)})


def read_request(message: Message) -> Request:
    """Return what the server asks for."""
    values: Any = message.content[RECORD]
    return Request(values["client"], values["round"], values["limit"], values["broadcast"])


def reply(message: Message, answer: Answer) -> Message:
    """Return a client's answer."""
    if answer.fault:
        return Message(content(fault=answer.fault, reason=answer.reason[:LONGEST]), reply_to=message)
    return Message(content(payload=answer.payload, **answer.metrics), reply_to=message)


def reply_hosted(message: Message, context: Context, total: int) -> Message:
    """Return which clients a node hosts, by its configuration."""
    return Message(content(clients=clients_of(context, total)), reply_to=message)


def clients_of(context: Context, total: int) -> list[int]:
    """Return the clients of a node: partition-id, partition-id + num-partitions, and so on."""
    node = context.node_config
    partition, partitions = node.get("partition-id"), node.get("num-partitions")
    if type(partition) is not int or type(partitions) is not int or not 0 <= partition < partitions:
        raise EngineError(
            f"node config partition-id = {partition!r}, num-partitions = {partitions!r}: a node should be started with "
            "--node-config 'partition-id=0 num-partitions=2', the first counted from 0"
        )
    return hosted(partition, partitions, total)


def recall(context: Context) -> Memory:
    """Return what a node remembers of this run, and of no other."""
    record = context.state.get(RECORD)
    if not isinstance(record, ConfigRecord) or record.get("run") != str(context.run_id):
        return {}
    return {int(name): held for name, held in record.items() if isinstance(held, bytes)}


def remember(context: Context, memory: Memory) -> None:
    """Keep what a node will need in the next round."""
    held: dict[str, Any] = {str(round): kept for round, kept in memory.items()}
    context.state[RECORD] = ConfigRecord({"run": str(context.run_id), **held})
