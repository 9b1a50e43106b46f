"""What the server tells a client at the start of a round: θ_g, in the shortest form the client can read.

Forms: the seed alone (before any training); counts that need no past; for a client that holds the broadcast of the
round before, the sum of the last masks, given that broadcast or given also the u of the clients that answered, or
those masks one by one as they were uploaded; and, for one that holds an earlier broadcast, all of these since then.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.posterior import Posterior
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import SERVER, Streams
from fedpm.wire.coders.table import CODERS
from fedpm.wire.contexts import Belief, Counts
from fedpm.wire.counts import Prediction, decode_added, decode_counts, encode_added, encode_counts
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Known, upload_uniform
from fedpm.wire.message import Kind, Message

MAX_TOTAL = 2**16
"""The most masks a posterior may be of; bounds what a decoder allocates."""
MAX_PREDICTED = 32
"""With more clients in a round, drawing all of their u costs a client more than it saves."""
MAX_STEPS = 8
"""How many rounds ago a client may have been there and be sent what was added since; bounds what the server keeps."""
_HEAD = struct.Struct("<QII")  # seed, λ0, total
_MASKS = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_UPLOAD = struct.Struct("<II")  # client, bytes


class Form(IntEnum):
    """How a broadcast is coded."""

    SEED = 0
    COUNTS = 1
    GIVEN_COUNTS = 2
    GIVEN_MASKS = 3
    RELAYED = 4
    STEPS = 5


@dataclass(frozen=True)
class Received:
    """What a client reads out of a broadcast; ``posterior`` is None before any training."""

    seed: int
    round: int
    posterior: Posterior | None
    stats: Vector

    def belief_of(self, masked: MaskedNetwork) -> Posterior:
        """Return the posterior, or the one that the seed implies."""
        return self.posterior or Posterior.initial(self.seed, masked.size, masked.init)


@dataclass(frozen=True)
class Downlink:
    """Writes and reads broadcasts for one network."""

    masked: MaskedNetwork

    def full(self, content: Received) -> Broadcast:
        """Return a broadcast that needs no past."""
        posterior = content.posterior
        if posterior is None:
            return self._message(content, Form.SEED, b"", Coded(b"", 0.0))
        return self._message(
            content, Form.COUNTS, b"", encode_counts(posterior.ones, posterior.total, self.masked.layers())
        )

    def brief(self, content: Received, before: Received, clients: list[int], *, shared: bool) -> Broadcast:
        """Return a broadcast for a client that holds ``before``; ``clients`` are those whose masks were added."""
        start, now = before.belief_of(self.masked), content.belief_of(self.masked)
        added = now.ones if now.total == len(clients) else now.ones - start.ones
        head = _MASKS.pack(len(clients))
        if shared and len(clients) <= MAX_PREDICTED:
            coded = self._prediction(before, clients).encode(added)
            return self._message(content, Form.GIVEN_MASKS, head + np.array(clients, "<u4").tobytes(), coded)
        return self._message(content, Form.GIVEN_COUNTS, head, encode_added(added, len(clients), start.belief))

    def relayed(self, content: Received, number: int, uploads: bytes) -> Broadcast:
        """Return a broadcast that passes the last uploads on, coded by the coder of this number."""
        return self._message(content, Form.RELAYED, bytes((number,)), Coded(uploads, 8.0 * len(uploads)))

    def chained(self, content: Received, steps: tuple[Broadcast, ...]) -> Broadcast:
        """Return a broadcast of the brief ones since the one that a client holds."""
        coded = Coded(pack([step.payload for step in steps]), sum(step.ideal_bits for step in steps))
        return self._message(replace(content, posterior=None), Form.STEPS, b"", coded)

    def known(self, belief: Belief, seed: int, round: int, client: int) -> Known:
        """Return what a client and the server both know when it uploads."""
        return Known(belief, Streams(seed).at(round, client), tuple(part.size for part in self.masked.parts))

    def _message(self, content: Received, form: Form, head: bytes, coded: Coded) -> Broadcast:
        posterior = content.posterior
        lam0, total = (0, 0) if posterior is None else (posterior.lam0, posterior.total)
        body = _HEAD.pack(content.seed, lam0, total) + head + coded.data
        stats = content.stats if posterior is not None else content.stats[:0]
        fingerprint = self.masked.fingerprint(content.seed)
        message = Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, body, stats)
        return Broadcast(message.to_bytes(), coded.ideal_bits)

    def read(self, broadcast: bytes, round: int, memory: bytes = b"") -> Received:
        """Read a broadcast; ``memory`` is the full form of an earlier one, if the client holds any."""
        return _read(self, broadcast, round, memory)

    def _decode(self, broadcast: bytes, round: int, memory: bytes) -> Received:
        message = Message.from_bytes(broadcast)
        if message.form not in (Form.GIVEN_COUNTS, Form.GIVEN_MASKS, Form.RELAYED, Form.STEPS):
            return self._step(message, round, None)
        chained = message.form == Form.STEPS
        *_, coded = self._expected(message, round, 0 if chained else self.masked.stats_size)
        payloads = unpack(coded, MAX_STEPS) if chained else [broadcast]
        steps = [Message.from_bytes(payload) for payload in payloads] if chained else [message]
        first = round - len(steps)
        held = Message.from_bytes(memory).round if memory else None
        if held is None or not first <= held < round:
            holds = "" if held is None else f"; it holds that of round {held}"
            raise WireError(
                f"broadcast builds on that of round {first}, which this client does not hold{holds}", "lacks"
            )
        if chained and held == round - 1 and steps[-1].form != Form.STEPS:
            return self.read(payloads[-1], round, memory)  # the same for all such chains
        received = self.read(memory, held)
        for number, step in list(enumerate(steps, first + 1))[held - first :]:
            received = self._step(step, number, received)
        return received

    def _expected(self, message: Message, round: int, stats: int) -> tuple[int, int, int, bytes]:
        """Return seed, λ0, total and the coded part of the broadcast that is due."""
        if len(message.coded) < _HEAD.size:
            raise WireError(f"broadcast of {len(message.coded)} bytes: too short to hold a seed; it was cut")
        seed, lam0, total = _HEAD.unpack_from(message.coded)
        message.expect(Kind.BROADCAST, self.masked.fingerprint(seed), round, SERVER, stats)
        return seed, lam0, total, message.coded[_HEAD.size :]

    def _step(self, message: Message, round: int, before: Received | None) -> Received:
        """Read a broadcast that builds on the one before or on none."""
        stats_size = 0 if message.form == Form.SEED else self.masked.stats_size
        seed, lam0, total, coded = self._expected(message, round, stats_size)
        if message.form == Form.SEED:
            return Received(seed, round, None, self.masked.initial_stats())
        if message.form > Form.RELAYED:
            raise WireError(f"broadcast or part of one of form {message.form}: it is damaged, or of a newer library")
        if not (0 < total <= MAX_TOTAL and 0 < lam0 <= MAX_TOTAL):
            raise WireError(f"broadcast of {total} masks with λ0 = {lam0}: both should be from 1 to {MAX_TOTAL}")
        if before is None or message.form == Form.COUNTS:
            ones = decode_counts(coded, total, self.masked.layers())
        else:
            ones = self._read_brief(message.form, coded, total, before)
        return Received(seed, round, Posterior(ones, total, lam0), message.stats)

    def _read_brief(self, form: int, coded: bytes, total: int, before: Received) -> Counts:
        """Return the counts of a brief broadcast."""
        if form == Form.RELAYED:
            masks, added = self._sum(before, coded)
        else:
            masks, coded = _read_count(coded)
        if not 0 < masks <= total:
            raise WireError(f"broadcast adds {masks} masks to a total of {total}: it is damaged")
        if form == Form.GIVEN_COUNTS:
            added = decode_added(coded, masks, before.belief_of(self.masked).belief)
        elif form == Form.GIVEN_MASKS:
            clients, coded = _read_clients(coded, masks)
            added = self._prediction(before, clients).decode(coded)
        if total == masks:
            return added
        if before.posterior is None or total != before.posterior.total + masks:
            raise WireError(f"broadcast of {total} masks does not continue the one this client holds")
        return before.posterior.ones + added

    def _sum(self, before: Received, coded: bytes) -> tuple[int, Counts]:
        """Decode relayed uploads: return how many there are, and the sum of their masks."""
        coders = dict(CODERS.values())
        if not coded or coded[0] not in coders:
            raise WireError("broadcast relays masks of an unknown coder: it is damaged, or of a newer library")
        belief = before.belief_of(self.masked).belief
        masks, added, place = 0, np.zeros(self.masked.size, np.uint32), 1
        while place < len(coded):
            if len(coded) < place + _UPLOAD.size:
                raise WireError("broadcast ends within a relayed upload: it was cut")
            client, size = _UPLOAD.unpack_from(coded, place)
            upload = coded[place + _UPLOAD.size : place + _UPLOAD.size + size]
            if len(upload) < size:
                raise WireError(f"broadcast relays {len(upload)} of an upload's {size} bytes: it was cut")
            added += coders[coded[0]].decode(upload, self.known(belief, before.seed, before.round, client))
            masks, place = masks + 1, place + _UPLOAD.size + size
        return masks, added

    def _prediction(self, before: Received, clients: list[int]) -> Prediction:
        """Return what the clients' shared u of the round before say about their masks."""
        prediction = Prediction(before.belief_of(self.masked).belief)
        for client in clients:
            prediction.add(upload_uniform(Streams(before.seed).at(before.round, client), self.masked.size))
        return prediction


@lru_cache(maxsize=2)  # simulated clients of one process all read the same; arrays of a result must not be changed
def _read(downlink: Downlink, broadcast: bytes, round: int, memory: bytes) -> Received:
    return downlink._decode(broadcast, round, memory)


def relay(client: int, coded: bytes) -> bytes:
    """Return a client's coded mask as a broadcast passes it on."""
    return _UPLOAD.pack(client, len(coded)) + coded


def pack(parts: list[bytes]) -> bytes:
    """Return all parts as one, each after its length."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes, most: int) -> list[bytes]:
    """Return the parts that were packed, of which there may be ``most``."""
    parts, place = list[bytes](), 0
    while place < len(data):
        if len(parts) == most or len(data) < place + _LENGTH.size:
            raise WireError(f"{len(data)} bytes do not hold 1 to {most} parts with their lengths: they are damaged")
        (size,) = _LENGTH.unpack_from(data, place)
        parts.append(data[place + _LENGTH.size : place + _LENGTH.size + size])
        if len(parts[-1]) < size:
            raise WireError(f"a part has {len(parts[-1])} of its {size} bytes: it was cut")
        place += _LENGTH.size + size
    return parts


def _read_count(coded: bytes) -> tuple[int, bytes]:
    if len(coded) < _MASKS.size:
        raise WireError(f"broadcast has {len(coded)} bytes where a number of masks should be: it was cut")
    return _MASKS.unpack_from(coded)[0], coded[_MASKS.size :]


def _read_clients(coded: bytes, count: int) -> tuple[list[int], bytes]:
    if count > MAX_PREDICTED or len(coded) < 4 * count:
        raise WireError(f"broadcast names {count} clients, more than it has room for: it is damaged")
    clients: npt.NDArray[np.uint32] = np.frombuffer(coded, "<u4", count)
    return clients.tolist(), coded[4 * count :]
