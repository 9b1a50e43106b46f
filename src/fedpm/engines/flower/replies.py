"""What the server reads in the replies of nodes. It is checked: it may be anything."""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.common.constant import ErrorCode

from fedpm.engines.base import Fault
from fedpm.engines.flower.messages import MAX_REASON, RECORD
from fedpm.errors import printable
from fedpm.methods.base import ClientResult

FAULTS = {"absent", "crashed", "error", "lacks", "silent"}
"""The faults that a client may report of itself."""
_METRICS = ("train_", "uplink_", "client_")
_FAULT_OF_CODE = {
    ErrorCode.UNKNOWN: "crashed",  # a Ray actor that died
    ErrorCode.CLIENT_APP_CRASHED: "crashed",
    ErrorCode.NODE_UNAVAILABLE: "crashed",
    ErrorCode.MESSAGE_UNAVAILABLE: "silent",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "silent",
}


def read_hosted(reply: Message, total: int) -> list[int] | Fault:
    """Return the clients that a node says it hosts."""
    if reply.has_error():
        return _error(reply)
    clients = _values(reply).get("clients")
    if isinstance(clients, list) and all(type(client) is int and 0 <= client < total for client in clients):
        return [int(client) for client in clients]
    return Fault("garbage", f"hosts clients {_said(str(clients))}: should be numbers from 0 to {total - 1}")


def read_answer(reply: Message) -> ClientResult | Fault:
    """Return what a client sent, or the fault that it is."""
    if reply.has_error():
        return _error(reply)
    values = _values(reply)
    payload, fault = values.get("payload"), values.get("fault")
    if isinstance(payload, bytes):
        metrics = {k: v for k, v in values.items() if k.startswith(_METRICS) and isinstance(v, float)}
        return ClientResult(payload, metrics)
    if fault in FAULTS:
        return Fault(str(fault), _said(str(values.get("reason", ""))))
    return Fault("garbage", "the reply holds neither an upload nor a known fault: another program answered")


def _values(reply: Message) -> Mapping[str, Any]:
    record = reply.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else {}


def _error(reply: Message) -> Fault:
    reason = reply.error.reason or "Flower gives no reason"
    return Fault(_FAULT_OF_CODE.get(reply.error.code, "error"), _said(reason))


def _said(text: str) -> str:
    """Return a node's words as one short line that steers no terminal."""
    return printable(" ".join(text[: 4 * MAX_REASON].split()))[:MAX_REASON]
