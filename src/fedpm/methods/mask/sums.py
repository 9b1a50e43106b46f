"""Sums of masks in place of masks: sub-aggregators, each of which decodes the uploads of some clients and adds them up.

What a sub-aggregator hands on is one message (docs/wire-format.md, kind 4): how many of its clients' masks had a one,
whose they are, the floats of each, and who was refused, with the reasons. Integer sums do not depend on their order, so
the posterior is the same to the last bit. The sum takes the place of single masks, so rules that look at those cannot
be used with it, and broadcasts pass no uploads on.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Folded, Screen
from fedpm.errors import ConfigError, WireError, printable
from fedpm.methods.mask.downlink import Addition
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState
from fedpm.methods.statistics import Floats, check_statistics, rounded
from fedpm.wire.counts import decode_added, encode_added
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Counts, Vector

HEAD = struct.Struct("<II")  # masks, refused clients
REFUSED = struct.Struct("<IBH")  # client, bytes of the fault's name and of its reason
MAX_REASON = 1000


@dataclass(frozen=True)
class MaskSum:
    """What the server learns of a round: whose masks were summed, their sum, and one vector of their floats."""

    clients: tuple[int, ...]
    ones: Counts
    stats: Vector


@dataclass(frozen=True)
class Subtotal:
    """What a sub-aggregator hands on: whose masks it summed, their sum, a row of floats for each, and who is out."""

    clients: tuple[int, ...]
    ones: Counts
    floats: npt.NDArray[np.float32]
    refused: dict[int, WireError]


class SubAggregator:
    """Decodes and adds up the uploads of some clients of the round that follows ``state``; it has a ``number``."""

    def __init__(self, method: FedPM, state: MaskState, number: int) -> None:
        self._method, self._state, self._number = method, state, number
        self._clients: list[int] = []
        self._ones: Counts = np.zeros(method.network.size, np.uint32)
        self._floats: list[Vector] = []
        self._refused: dict[int, WireError] = {}

    def add(self, client: int, payload: bytes) -> None:
        """Take a client's upload; what cannot be used is noted with the reason."""
        try:
            update = self._method.decode(self._state, client, payload)
        except WireError as error:
            self._refused[client] = error
            return
        self._clients.append(client)
        self._ones += update.mask
        self._floats.append(update.stats)

    def message(self) -> bytes:
        """Return the sum for the server."""
        body = HEAD.pack(len(self._clients), len(self._refused)) + np.array(self._clients, "<u4").tobytes()
        for client, error in self._refused.items():
            kind, reason = error.kind.encode()[:255], str(error).encode()[:MAX_REASON]
            body += REFUSED.pack(client, len(kind), len(reason)) + kind + reason
        if self._clients:
            body += encode_added(self._ones, len(self._clients), self._state.start).data
        floats = np.concatenate([np.zeros(0, np.float32), *self._floats])
        fingerprint = self._method.network.fingerprint(self._method.seed)
        named = (Kind.SUM, self._method.upload_form, fingerprint, self._state.round + 1, self._number)
        return Message(*named, body, floats).to_bytes()


def read_subtotal(method: FedPM, state: MaskState, number: int, given: Collection[int], data: bytes) -> Subtotal:
    """Return what a sub-aggregator made of the clients that it was ``given``, or raise WireError."""
    message, network = Message.from_bytes(data), method.network
    masks, out = _head(message.coded)
    if masks + out != len(given):
        raise WireError(f"sum of {masks} masks, {out} clients refused: should be the {len(given)} of its clients")
    stats = masks * network.stats_size
    message.expect(Kind.SUM, network.fingerprint(method.seed), state.round + 1, number, stats)
    if message.form != method.upload_form or message.floats:
        raise WireError(f"sum of uploads of form {message.form} instead of {method.upload_form}: of another coder")
    clients = tuple(np.frombuffer(message.coded, "<u4", masks, HEAD.size).tolist())
    refused, rest = _refused(message.coded[HEAD.size + 4 * masks :], out)
    if {*clients, *refused} != set(given):
        raise WireError("sum of masks of other clients than its sub-aggregator has, or of one of them twice")
    floats = message.stats.reshape(masks, network.stats_size)
    for row in floats:
        check_statistics(network, row)
    if not masks and rest:
        raise WireError(f"sum of no mask with {len(rest)} bytes of counts: it is damaged")
    ones = decode_added(rest, masks, state.start) if masks else np.zeros(network.size, np.uint32)
    return Subtotal(clients, ones, floats, refused)


def _head(coded: bytes) -> tuple[int, int]:
    if len(coded) < HEAD.size:
        raise WireError(f"sum of {len(coded)} bytes: shorter than its head of {HEAD.size}; it was cut")
    masks, out = HEAD.unpack_from(coded)
    if len(coded) < HEAD.size + 4 * masks + REFUSED.size * out:
        raise WireError(f"sum of {masks} masks, {out} clients refused, in {len(coded)} bytes: it was cut")
    return masks, out


def _refused(data: bytes, count: int) -> tuple[dict[int, WireError], bytes]:
    """Return who was refused and why, and the bytes that follow."""
    refused = dict[int, WireError]()
    for _ in range(count):
        if len(data) < REFUSED.size:
            raise WireError("sum ends among the clients that were refused: it was cut")
        client, kind, reason = REFUSED.unpack_from(data)
        words, end = data[REFUSED.size :], kind + reason
        name, why = (printable(text.decode(errors="replace")) for text in (words[:kind], words[kind:end]))
        if len(words) < end or reason > MAX_REASON or client in refused:
            raise WireError(f"sum refuses client {client} twice, or with a reason of {reason} bytes: it is damaged")
        refused[client], data = WireError(why, name), words[end:]
    return refused, data


@dataclass(frozen=True, kw_only=True)
class SummedFedPM(FedPM):
    """FedPM of whose masks the server sees sums."""

    def total(self, state: MaskState, subtotals: Iterable[Subtotal], order: Sequence[int]) -> MaskSum:
        """Return the sum of all; floats are folded in the order of the clients of the round, as if each had come."""
        ones: Counts = np.zeros(self.network.size, np.uint32)
        rows: dict[int, Vector] = {}
        for part in subtotals:
            ones += part.ones
            rows.update(zip(part.clients, part.floats, strict=True))
        clients = tuple(client for client in order if client in rows)
        floats = Floats(self.network)
        for client in clients:
            floats.add(rows[client])
        return MaskSum(clients, ones, floats.aggregate(state.stats))

    def aggregate(self, state: MaskState, updates: Iterable[MaskSum]) -> MaskState:  # type: ignore[override]
        """Add the sum to the posterior (Algorithm 2)."""
        for summed in updates:
            masks = _voted(self, Folded(summed.ones, len(summed.clients)))
            posterior = state.learned(masks.total, masks.count, self.lam0, self.reset_every, self.kept)
            added = Addition(state.history.content, summed.clients, masks.count, self.aggregator.sums)
            stats = rounded(self.network, summed.stats, state.stats)  # so that clients can have the same
            return self._after(state, posterior, stats, added)
        return self._unchanged(state)


def _voted(method: FedPM, votes: Folded) -> Folded:
    """Return what the rule makes of a sum of masks."""
    rule = getattr(method.aggregator, "of_sum", None)
    return votes if rule is None else rule(votes)


def summed(method: object) -> SummedFedPM:
    """Return a mask method whose server sees sums, or raise ConfigError if it needs single masks."""
    if type(method) is not FedPM:
        raise ConfigError("subtotals = true: only FedPM and what is built on it sums masks; use subtotals = false")
    rule = method.aggregator
    if isinstance(rule, Screen) or not (rule.sums or hasattr(rule, "of_sum")):
        raise ConfigError(
            "aggregator: it looks at single uploads, and with subtotals = true the server has only their sums; use "
            "aggregator = 'mean' or 'trimmed-votes', or subtotals = false, where processes decode and this rule works"
        )
    given = {field.name: getattr(method, field.name) for field in fields(method)}
    return SummedFedPM(**{**given, "relay": False})
