"""The server's last broadcasts, which bring clients up to date that missed a few rounds."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

from fedpm.aggregation.posterior import Posterior
from fedpm.methods.base import Arrays, Broadcast
from fedpm.methods.mask.downlink import MAX_STEPS, Addition, Content, DownlinkWriter
from fedpm.methods.relay import join, split


@dataclass(frozen=True)
class Window:
    """The broadcast that needs no past, ``whole``, the same of the round ``before``, and brief ones that lead on.

    Of ``whole``, ``full`` is what tells this round's θ alone. The last brief one builds on ``before``, each other one
    on what the one ahead of it leads to. They are kept for as long as they are together shorter than ``whole``.
    ``holders`` has each client that holds a broadcast on which one of them builds, with its round.
    """

    full: Broadcast
    whole: Broadcast
    before: bytes = b""
    steps: tuple[Broadcast, ...] = ()
    holders: dict[int, int] = field(default_factory=dict)

    def then(
        self, full: Broadcast, whole: Broadcast, step: Broadcast, clients: tuple[int, ...], round: int
    ) -> "Window":
        """Return the window after a round, which these clients answered."""
        steps = (*self.steps, step)
        lengths = list(accumulate(len(one.payload) for one in reversed(steps)))[:MAX_STEPS]
        oldest = len(steps) - sum(length < len(whole.payload) for length in lengths)
        answered = {**self.holders, **dict.fromkeys(clients, round)}
        recent = {client: last for client, last in answered.items() if last > round - len(steps) + oldest}
        return Window(full, whole, self.whole.payload, steps[oldest:], recent)

    def to_bytes(self) -> bytes:
        """Return all of it as bytes."""
        ideal = np.array([one.ideal_bits for one in (self.full, self.whole, *self.steps)], "<f8")
        holders = np.array(list(self.holders.items()), "<i8")
        payloads = [self.full.payload, self.whole.payload, self.before, *(step.payload for step in self.steps)]
        return join([ideal.tobytes(), holders.tobytes(), *payloads])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Window":
        """Return the window of which these are the bytes."""
        ideal, holders, full, whole, before, *steps = split(data, 5 + MAX_STEPS)
        bits = np.frombuffer(ideal, "<f8").tolist()
        pairs = np.frombuffer(holders, "<i8").reshape(-1, 2).tolist()
        rest = tuple(map(Broadcast, steps, bits[2:]))
        return cls(Broadcast(full, bits[0]), Broadcast(whole, bits[1]), before, rest, dict(pairs))


@dataclass(frozen=True)
class History:
    """What the broadcast of the next round can build on; nothing is coded before that round begins.

    ``past`` is the window of the round before, and ``added`` what that round added; without them clients are told all.
    """

    writer: DownlinkWriter
    content: Content
    past: Window | None = None
    added: Addition | None = None

    @cached_property
    def window(self) -> Window:
        """The broadcasts of the next round, coded when they are first asked for."""
        full = self.writer.full(self.content)
        if self.past is None or self.added is None:
            return Window(full, self.writer.whole(self.content))
        whole = self.writer.both(self.content, self.past.full, full) if self.content.before else full
        step = self.writer.step(self.content, self.added)
        return self.past.then(full, whole, step, self.added.clients, self.content.round - 1)

    def broadcast(self, since: int | None) -> Broadcast:
        """Return the next round's broadcast for a client that holds the one of round ``since`` or none."""
        window = self.window
        if since is None:
            return window.whole
        steps = window.steps[since - self.content.round :]
        brief = steps[0] if len(steps) == 1 else self.writer.chain(self.content, steps)
        return min(window.whole, brief, key=lambda form: len(form.payload))

    def to_arrays(self) -> Arrays:
        """Return what was added and what that builds on, for a checkpoint; the posterior is the state's own."""
        if self.past is None or self.added is None:
            return {}
        added, before = self.added, self.added.before
        return {
            "past": np.frombuffer(self.past.to_bytes(), np.uint8),
            **_to_arrays("before", before),
            **(_to_arrays("earlier", before.before) if before.before else {}),
            "added": np.array([added.masks, added.sums, *added.clients], np.int64),
            "uploads": np.frombuffer(added.uploads, np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, writer: DownlinkWriter, content: Content) -> "History":
        """Return the history that ``to_arrays`` gave."""
        if "past" not in arrays:
            return cls(writer, content)
        seed, lam0 = content.seed, content.posterior.lam0
        before = _from_arrays("before", arrays, seed, content.round - 1, lam0)
        if "earlier_ones" in arrays:
            earlier = _from_arrays("earlier", arrays, seed, content.round - 2, lam0)
            before = earlier.then(before.posterior, before.stats, writer.lookahead)
        content = before.then(content.posterior, content.stats, writer.lookahead)
        masks, sums, *clients = arrays["added"].tolist()
        added = Addition(before, tuple(clients), masks, bool(sums), arrays["uploads"].tobytes())
        return cls(writer, content, Window.from_bytes(arrays["past"].tobytes()), added)


def _to_arrays(name: str, content: Content) -> Arrays:
    posterior = content.posterior
    numbers = np.array([posterior.total, posterior.learned])
    return {f"{name}_ones": posterior.ones, f"{name}_total": numbers, f"{name}_stats": content.stats}


def _from_arrays(name: str, arrays: Arrays, seed: int, round: int, lam0: int) -> Content:
    total, learned = arrays[f"{name}_total"].tolist()
    posterior = Posterior(arrays[f"{name}_ones"], total, lam0 if learned else 1, bool(learned))
    return Content(seed, round, posterior, arrays[f"{name}_stats"])
