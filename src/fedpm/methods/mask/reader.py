"""How a client reads a broadcast, whatever its form (``downlink.Form``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.posterior import MAX_TOTAL, UNIT, Posterior
from fedpm.errors import WireError
from fedpm.methods.mask.downlink import (
    BUILDING,
    HEAD,
    MASKS,
    MAX_PREDICTED,
    MAX_STEPS,
    Content,
    Form,
    context,
    prediction,
)
from fedpm.methods.relay import relayed, split
from fedpm.methods.statistics import read_floats
from fedpm.rng import SERVER
from fedpm.wire.coders.base import Coding
from fedpm.wire.counts import decode_added, decode_counts
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Counts

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

_KEPT = 2  # contents that a reader keeps: simulated clients of one process all read the same


class DownlinkReader:
    """Reads broadcasts for one network and seed, whose clients' masks are coded by ``coding``.

    Of earlier counts, ``kept`` quarters remain when a round ends; clients start ahead of broadcasts by ``lookahead``.
    """

    def __init__(
        self, network: MaskedNetwork, coding: Coding, seed: int, kept: int = UNIT, lookahead: float = 0.0
    ) -> None:
        self._network, self._coding, self._seed, self._kept, self._lookahead = network, coding, seed, kept, lookahead
        self._recent: dict[tuple[bytes, int, bytes], Content] = {}

    def __getstate__(self) -> dict[str, object]:
        """Leave what was read behind on the way to another process."""
        return {**self.__dict__, "_recent": {}}

    def read(self, broadcast: bytes, round: int, memory: bytes = b"") -> Content:
        """Read a broadcast; ``memory`` is an earlier one in a form that needs no past, if the client holds any.

        Its arrays must not be changed: the same content may be given to several clients.
        """
        key = broadcast, round, memory
        content = self._recent.pop(key, None) or self._decode(broadcast, round, memory)
        while len(self._recent) >= _KEPT:
            del self._recent[next(iter(self._recent))]
        self._recent[key] = content
        return content

    def _decode(self, broadcast: bytes, round: int, memory: bytes) -> Content:
        message = Message.from_bytes(broadcast)
        if message.form == Form.BOTH:
            before, full = self._both(message, round)
            content, known = self._step(full, round, None), self._step(before, round - 1, None)
            return replace(content, before=known, lookahead=self._lookahead)
        if message.form not in BUILDING:
            return self._step(message, round, None)
        chained = message.form == Form.STEPS
        *_, coded = self._expected(message, round, 0 if chained else self._network.stats_size)
        payloads = split(coded, MAX_STEPS) if chained else [broadcast]
        steps = [Message.from_bytes(payload) for payload in payloads] if chained else [message]
        if wrong := [step.form for step in steps if step.form not in BUILDING[:-1]]:
            raise WireError(f"broadcast or part of one of form {wrong[0]}: it is damaged, or of a newer library")
        first = round - len(steps)
        last = _round_of(memory, first, round)
        if chained and last == round - 1:
            return self.read(payloads[-1], round, memory)  # the same for all such chains
        content = self.read(memory, last)
        for number, step in list(enumerate(steps, first + 1))[last - first :]:
            content = self._step(step, number, content)
        return content

    def _both(self, message: Message, round: int) -> list[Message]:
        """Return the full broadcasts of the round before and of this one that a message holds."""
        *_, coded = self._expected(message, round, 0)
        parts = [Message.from_bytes(payload) for payload in split(coded, 2)]
        forms = [part.form for part in parts]
        if len(forms) < 2 or forms[0] not in (Form.SEED, Form.COUNTS) or forms[1] != Form.COUNTS:
            raise WireError(f"broadcast of parts of forms {forms}: should be two full ones; it is damaged")
        return parts

    def _expected(self, message: Message, round: int, stats: int) -> tuple[int, int, int, bytes]:
        """Return seed, λ0, total and the coded part of the broadcast that is due."""
        if len(message.coded) < HEAD.size:
            raise WireError(f"broadcast of {len(message.coded)} bytes: too short to hold a seed; it was cut")
        seed, lam0, total = HEAD.unpack_from(message.coded)
        message.expect(Kind.BROADCAST, self._network.fingerprint(self._seed), round, SERVER, stats)
        if seed != self._seed:
            raise WireError(f"broadcast of seed {seed} instead of {self._seed}: of another run", "wrong model")
        return seed, lam0, total, message.coded[HEAD.size :]

    def _step(self, message: Message, round: int, before: Content | None) -> Content:
        """Read a broadcast that builds on the one before or on none."""
        stats_size = 0 if message.form == Form.SEED else self._network.stats_size
        seed, lam0, total, coded = self._expected(message, round, stats_size)
        if message.form == Form.SEED:
            return Content(seed, round, Posterior.initial(self._network, seed), self._network.initial_stats())
        if message.form > Form.RELAYED:
            raise WireError(f"broadcast or part of one of form {message.form}: it is damaged, or of a newer library")
        if not (0 < total <= MAX_TOTAL and 0 < lam0 <= MAX_TOTAL):
            raise WireError(f"broadcast of {total} masks with λ0 = {lam0}: both should be from 1 to {MAX_TOTAL}")
        if before is None or message.form == Form.COUNTS:
            posterior = Posterior(decode_counts(coded, total, self._network.layers()), total, lam0)
        else:
            masks, reset, added = self._brief(message.form, coded, total, before)
            posterior = before.posterior.updated(added, masks, lam0=lam0, reset=reset, kept=self._kept)
        if message.floats and before is None:
            raise WireError("broadcast has floats that build on another, and itself builds on none: it is damaged")
        if before is None:
            return Content(seed, round, posterior, message.stats)
        return before.then(posterior, read_floats(self._network, message, before.stats), self._lookahead)

    def _brief(self, form: int, coded: bytes, total: int, before: Content) -> tuple[int, bool, Counts]:
        """Return how many masks a brief broadcast adds, whether to nothing, and their counts."""
        uploads: list[tuple[int, bytes]] = []
        if form == Form.RELAYED:
            uploads = self._relayed(coded)
            masks = len(uploads)
        else:
            masks, coded = _read_count(coded)
        totals = [before.posterior.total_after(masks, reset=reset, kept=self._kept) for reset in (False, True)]
        if masks < 1 or total not in totals:
            raise WireError(f"broadcast adds {masks} masks and makes a total of {total}, not {totals}: it is damaged")
        if form == Form.RELAYED:
            added = self._sum(before, uploads)
        elif form == Form.GIVEN_COUNTS:
            added = decode_added(coded, masks, before.start)
        elif form == Form.GIVEN_MASKS:
            clients, coded = _read_clients(coded, masks)
            added = prediction(self._network, before, clients).decode(coded)
        return masks, total != totals[0], added

    def _relayed(self, coded: bytes) -> list[tuple[int, bytes]]:
        """Return the clients and the coded masks of relayed uploads, none of them decoded."""
        if not coded or coded[0] != self._coding.form:
            raise WireError("broadcast relays masks of another coder than this federation's: it is damaged")
        return relayed(coded[1:])

    def _sum(self, before: Content, uploads: list[tuple[int, bytes]]) -> Counts:
        """Return the sum of relayed masks."""
        added = np.zeros(self._network.size, np.uint32)
        for client, upload in uploads:
            added += self._coding.coder.decode(upload, context(self._network, before, client))
        return added


def _round_of(memory: bytes, first: int, round: int) -> int:
    """Return the round of the broadcast that a client remembers, if one on which the new one builds."""
    remembered = Message.from_bytes(memory).round if memory else None
    if remembered is None or not first <= remembered < round:
        holds = "" if remembered is None else f"; it holds that of round {remembered}"
        raise WireError(f"broadcast builds on that of round {first}, which this client does not hold{holds}", "lacks")
    return remembered


def _read_count(coded: bytes) -> tuple[int, bytes]:
    if len(coded) < MASKS.size:
        raise WireError(f"broadcast has {len(coded)} bytes where a number of masks should be: it was cut")
    return MASKS.unpack_from(coded)[0], coded[MASKS.size :]


def _read_clients(coded: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    if count > MAX_PREDICTED or len(coded) < 4 * count:
        raise WireError(f"broadcast names {count} clients, more than it has room for: it is damaged")
    clients: npt.NDArray[np.uint32] = np.frombuffer(coded, "<u4", count)
    return tuple(clients.tolist()), coded[4 * count :]
