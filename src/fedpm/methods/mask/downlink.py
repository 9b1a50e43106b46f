"""What the server tells a client at the start of a round: θ_g, in the shortest form that the client can read.

This file has the table of forms and the writer; ``reader`` has the other end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedpm.aggregation.posterior import UNIT, Posterior
from fedpm.methods.base import Broadcast
from fedpm.methods.relay import join
from fedpm.methods.statistics import write_floats
from fedpm.rng import SERVER, Streams
from fedpm.wire.coders.base import Coding, Context
from fedpm.wire.counts import Prediction, encode_added, encode_counts
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import upload_uniform
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Theta, Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

MAX_PREDICTED = 32
"""With more clients in a round, drawing all of their u costs a client more than it saves."""
MAX_STEPS = 8
"""How many rounds ago a client may have been there and be sent what was added since; bounds what the server keeps."""
HEAD = struct.Struct("<QII")  # seed, λ0, total
MASKS = struct.Struct("<I")


class Form(IntEnum):
    """How a broadcast is coded.

    ======  ============  ==================================================================================
    number  form          what it says, and to whom
    ======  ============  ==================================================================================
    0       SEED          the seed alone, before any training
    1       COUNTS        all counts, to anybody
    2       GIVEN_COUNTS  the sum of the last masks, to one who holds the broadcast of the round before
    3       GIVEN_MASKS   the same, given also the shared u of the clients that answered
    4       RELAYED       the last masks one by one, as they were uploaded
    5       STEPS         forms 2 to 4 of several rounds, to one who holds an earlier broadcast
    6       BOTH          form 0 or 1 of the round before, and form 1, to anybody, where clients look ahead
    ======  ============  ==================================================================================
    """

    SEED = 0
    COUNTS = 1
    GIVEN_COUNTS = 2
    GIVEN_MASKS = 3
    RELAYED = 4
    STEPS = 5
    BOTH = 6


BUILDING = (Form.GIVEN_COUNTS, Form.GIVEN_MASKS, Form.RELAYED, Form.STEPS)
"""The forms that build on an earlier broadcast."""


@dataclass(frozen=True)
class Content:
    """What a broadcast says; where clients look ahead, they know what was said ``before`` too."""

    seed: int
    round: int
    posterior: Posterior
    stats: Vector
    before: Content | None = None
    lookahead: float = 0.0

    @cached_property
    def start(self) -> Theta:
        """θ from which clients start, and which predicts their masks.

        It is ahead of what they are told by a share of what changed since the broadcast before: momentum between
        rounds, for a client's optimiser begins each one anew.
        """
        now = self.posterior.theta
        return now.ahead(self.before.posterior.theta, self.lookahead) if self.before else now

    def then(self, posterior: Posterior, stats: Vector, lookahead: float) -> Content:
        """Return what the next broadcast says."""
        before = replace(self, before=None) if lookahead else None
        return Content(self.seed, self.round + 1, posterior, stats, before, lookahead)


@dataclass(frozen=True)
class Addition:
    """What a round added to the posterior of ``before``: so many masks, of these clients.

    ``sums`` tells whether it is the plain sum of their masks; then ``uploads`` are these, to be passed on, or empty.
    """

    before: Content
    clients: tuple[int, ...]
    masks: int
    sums: bool = True
    uploads: bytes = b""


@dataclass(frozen=True)
class DownlinkWriter:
    """Writes broadcasts for one network, whose clients' masks are coded by ``coding``.

    Of earlier counts, ``kept`` quarters remain when a round ends. Clients start ahead of a broadcast by ``lookahead``
    of what has changed since the one before, which all of them are to know then.
    """

    network: MaskedNetwork
    coding: Coding
    kept: int = UNIT
    lookahead: float = 0.0

    def full(self, content: Content) -> Broadcast:
        """Return a broadcast that needs no past."""
        posterior = content.posterior
        if not posterior.learned:
            return self._message(content, Form.SEED, b"", Coded(b"", 0.0))
        return self._message(
            content, Form.COUNTS, b"", encode_counts(posterior.ones, posterior.total, self.network.layers())
        )

    def step(self, content: Content, added: Addition) -> Broadcast:
        """Return the shortest broadcast for a client that holds the one before."""
        forms = [self.brief(content, added)]
        if added.uploads:
            forms.append(self.relayed(content, added))
        return min(forms, key=lambda form: len(form.payload))

    def brief(self, content: Content, added: Addition) -> Broadcast:
        """Return the sum of the masks that were added, given the broadcast before and perhaps the clients' u."""
        before = added.before.posterior
        ones = before.added(content.posterior, added.masks, kept=self.kept)
        head = MASKS.pack(added.masks)
        if self.coding.shared_uniform and added.sums and len(added.clients) <= MAX_PREDICTED:
            coded = prediction(self.network, added.before, added.clients).encode(ones)
            head += np.array(added.clients, "<u4").tobytes()
            return self._message(content, Form.GIVEN_MASKS, head, coded, added.before.stats)
        coded = encode_added(ones, added.masks, added.before.start)
        return self._message(content, Form.GIVEN_COUNTS, head, coded, added.before.stats)

    def relayed(self, content: Content, added: Addition) -> Broadcast:
        """Return a broadcast that passes the last uploads on."""
        coded = Coded(added.uploads, 8.0 * len(added.uploads))
        return self._message(content, Form.RELAYED, bytes((self.coding.form,)), coded, added.before.stats)

    def chain(self, content: Content, steps: tuple[Broadcast, ...]) -> Broadcast:
        """Return a broadcast of the brief ones since the one that a client holds."""
        coded = Coded(join([step.payload for step in steps]), sum(step.ideal_bits for step in steps))
        return self._message(content, Form.STEPS, b"", coded)

    def whole(self, content: Content) -> Broadcast:
        """Return a broadcast that needs no past, and tells all that a client is to know."""
        full = self.full(content)
        return full if content.before is None else self.both(content, self.full(content.before), full)

    def both(self, content: Content, before: Broadcast, full: Broadcast) -> Broadcast:
        """Return the full broadcasts of two rounds in one."""
        coded = Coded(join([before.payload, full.payload]), before.ideal_bits + full.ideal_bits)
        return self._message(content, Form.BOTH, b"", coded)

    def _message(
        self, content: Content, form: Form, head: bytes, coded: Coded, known: Vector | None = None
    ) -> Broadcast:
        posterior = content.posterior
        whole = form not in (Form.SEED, Form.STEPS, Form.BOTH)  # the others say nothing of their own beyond the seed
        lam0, total = (posterior.lam0, posterior.total) if whole else (0, 0)
        body = HEAD.pack(content.seed, lam0, total) + head + coded.data
        stats = content.stats if whole else content.stats[:0]
        fingerprint = self.network.fingerprint(content.seed)
        floats = b"" if known is None else write_floats(self.network, stats, known, exact=True)
        message = Message(Kind.BROADCAST, form, fingerprint, content.round, SERVER, body, stats, floats)
        return Broadcast(message.to_bytes(), coded.ideal_bits)


def context(network: MaskedNetwork, content: Content, client: int) -> Context:
    """Return what a client and the server both know when it answers a broadcast."""
    streams = Streams(content.seed).at(content.round, client)
    return Context(content.start, streams, tuple(part.size for part in network.parts))


def prediction(network: MaskedNetwork, before: Content, clients: tuple[int, ...]) -> Prediction:
    """Return what the clients' shared u of the round before say about their masks."""
    predicted = Prediction(before.start)
    for client in clients:
        predicted.add(upload_uniform(Streams(before.seed).at(before.round, client), network.size))
    return predicted
