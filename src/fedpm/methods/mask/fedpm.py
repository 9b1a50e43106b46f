"""FedPM: federated training of a probability mask (Algorithm 1)."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpm.aggregation.posterior import Posterior, reset_due
from fedpm.data.datasets import Shard
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast, ClientResult
from fedpm.methods.mask.downlink import Downlink, Received, relay
from fedpm.methods.mask.window import Window
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.training.local import Local, train_scores
from fedpm.training.private import Private, train_private
from fedpm.wire.coders.relative_entropy import RelativeEntropy
from fedpm.wire.coders.table import CODERS
from fedpm.wire.contexts import Counts
from fedpm.wire.masks import Known, Mask, entropy, sample_mask
from fedpm.wire.message import Kind, Message

CLAMP = 0.01
"""Clients keep θ in [0.01, 0.99] before the logit, which is infinite at 0 and 1."""


@dataclass(frozen=True)
class FedPMState:
    """The server's state: ones among ``total`` masks since the last reset (0: the seed's initial θ).

    ``window`` has its last broadcasts and the next one (``Window.of``).
    """

    round: int
    ones: Counts
    total: int
    stats: Vector
    window: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Update:
    """A decoded upload, and the mask as it was coded, if that may be relayed."""

    client: int
    mask: Mask
    stats: Vector
    coded: bytes = b""


@dataclass(frozen=True)
class FedPM:
    """FedPM with Bayesian aggregation; ``reset_every=1`` with ``lam0=1`` is the plain mean of Section 3.1.2."""

    masked: MaskedNetwork
    seed: int
    local: Local
    codec: str = "shared-randomness"
    lam0: int = 1
    reset_every: int = 1
    relay: bool = True
    relative: RelativeEntropy = field(default_factory=RelativeEntropy)
    private: Private | None = None
    modes: tuple[str, ...] = ("sampled", "thresholded", "expected")
    final_modes: tuple[str, ...] = ("sampled", "thresholded")

    @cached_property
    def _downlink(self) -> Downlink:
        return Downlink(self.masked)

    def init(self) -> FedPMState:
        """Return the state before the first round: nothing but what the seed implies."""
        nothing = np.zeros(self.masked.size, np.uint32)
        stats = self.masked.initial_stats()
        seed = self._downlink.full(Received(self.seed, 1, None, stats))
        return FedPMState(0, nothing, 0, stats, Window(seed).array())

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train a probability mask from the server's, and send one sample of it (Section 3.1.1)."""
        received = self._downlink.read(broadcast, rng.round, memory)
        belief = received.belief_of(self.masked).belief
        start = belief.theta().clip(CLAMP, 1 - CLAMP)
        weights = self.masked.weights(received.seed)
        measured = {}
        if self.private is None:
            theta, stats, loss = train_scores(self.masked, weights, start, received.stats, shard, rng, self.local)
            measured["train_loss"] = loss
        else:  # what is measured on the examples themselves stays on the client
            rng, stats = self.private.streams(rng), received.stats
            theta = train_private(self.masked, weights, start, shard, rng, self.local, self.private)
        if self.private is None or self.private.unit == "example":
            measured["uplink_kl_bpp"] = divergence(theta, start)
        number, coder = CODERS[self.codec]
        if self.codec == "relative-entropy":
            coder = self.relative
        known = self._downlink.known(belief, received.seed, rng.round, rng.client)
        mask, coded = coder.encode(theta, known, private=rng)
        fingerprint = self.masked.fingerprint(received.seed)
        message = Message(Kind.UPLOAD, number, fingerprint, rng.round, rng.client, coded.data, stats)
        metrics = {
            **measured,
            "uplink_ideal_bpp": coded.ideal_bits / self.masked.size,
            "uplink_frequency_entropy_bpp": entropy(float(mask.mean(dtype=np.float64))),
        }
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return what a client keeps of a broadcast, to read brief ones later."""
        return self._downlink.full(self._downlink.read(broadcast, round, memory)).payload

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: FedPMState, *, since: int | None = None) -> Broadcast:
        """Return the message that starts the next round, for a client that holds the one of round ``since`` or none."""
        window = Window.of(state.window)
        if since is None:
            return window.full
        steps = window.steps[since - state.round - 1 :]
        brief = steps[0] if len(steps) == 1 else self._downlink.chained(self._content(state), steps)
        return min(window.full, brief, key=lambda form: len(form.payload))

    def holders(self, state: FedPMState) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""
        return Window.of(state.window).holders

    def memory(self, state: FedPMState) -> bytes:
        """Return what a client that holds the broadcast of the round before remembers of it."""
        return Window.of(state.window).before

    def _content(self, state: FedPMState) -> Received:
        posterior = Posterior(state.ones, state.total, self.lam0) if state.total else None
        return Received(self.seed, state.round + 1, posterior, state.stats)

    def decode(self, state: FedPMState, client: int, payload: bytes) -> Update:
        """Return a client's mask and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.masked.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.masked.stats_size)
        number, coder = CODERS[self.codec]
        if message.form != number:
            names = {n: name for name, (n, _) in CODERS.items()}
            raise WireError(f"mask coded with {names.get(message.form, message.form)!r} instead of {self.codec!r}")
        return Update(client, coder.decode(message.coded, self.known(state, client)), message.stats, message.coded)

    def known(self, state: FedPMState, client: int) -> Known:
        """Return what a client and the server both know when it answers the next broadcast."""
        return self._downlink.known(self.posterior(state).belief, self.seed, state.round + 1, client)

    def aggregate(self, state: FedPMState, updates: Iterable[Update]) -> FedPMState:
        """Update the posterior with the clients' masks (Algorithm 2), one at a time."""
        ones = np.zeros(self.masked.size, np.uint32)
        stats = np.zeros(self.masked.stats_size, np.float64)
        clients: list[int] = []
        uploads: bytes | None = b""
        for update in updates:
            ones += update.mask
            stats += update.stats
            clients.append(update.client)
            uploads = self._relay(uploads, update)
        after = replace(state, round=state.round + 1)
        if not clients:  # the belief stays; so rare a case needs no brief form
            return replace(after, window=Window(self._downlink.full(self._content(after))).array())
        reset = state.total == 0 or reset_due(after.round, self.reset_every)
        posterior = Posterior(state.ones, state.total, self.lam0).updated(ones, len(clients), reset=reset)
        mean = (stats / len(clients)).astype(np.float32)
        after = replace(after, ones=posterior.ones, total=posterior.total, stats=mean)
        content, before = self._content(after), self._content(state)
        forms = [self._downlink.brief(content, before, clients, shared=self.codec == "shared-randomness")]
        if uploads:
            forms.append(self._downlink.relayed(content, CODERS[self.codec][0], uploads))
        brief = min(forms, key=lambda form: len(form.payload))
        window = Window.of(state.window).then(self._downlink.full(content), brief, clients, after.round)
        return replace(after, window=window.array())

    def _relay(self, uploads: bytes | None, update: Update) -> bytes | None:
        """Add an upload to those to relay; None: they are not worth it, or not allowed."""
        if uploads is None or not self.relay or not update.coded:
            return None
        grown = uploads + relay(update.client, update.coded)
        return grown if len(grown) <= self.masked.size // 2 else None  # bounds what the server keeps

    # -- the global model ---------------------------------------------------------------------------------

    def posterior(self, state: FedPMState) -> Posterior:
        """Return the server's belief."""
        if state.total == 0:
            return Posterior.initial(self.seed, self.masked.size, self.masked.init)
        return Posterior(state.ones, state.total, self.lam0)

    def mask(self, state: FedPMState, mode: str) -> Mask | Vector:
        """Return the global mask: one sample of Bern(θ), θ > 0.5, or θ itself (expected)."""
        theta = self.posterior(state).mode()
        if mode == "expected":
            return theta
        if mode == "thresholded":
            return (theta > 0.5).astype(np.uint8)
        return sample_mask(theta, Streams(self.seed).at(state.round).uint32("global mask", len(theta)))

    def network(self, state: FedPMState, mode: str) -> nn.Module:
        """Return the frozen network under the global mask."""
        mask = torch.from_numpy(self.mask(state, mode))
        return self.masked.module(mask * self.masked.weights(self.seed), state.stats)


def divergence(theta: Vector, start: Vector) -> float:
    """Return the mean of KL(Bern(θ_k) ‖ Bern(θ_g)) in bits: the least that any shared randomness could send."""
    p, q = torch.from_numpy(theta), torch.from_numpy(start)
    tiny = torch.finfo(p.dtype).tiny  # 0 · log(tiny) is 0, as it should be; logarithms are what takes time here
    bits = p * (p / q).clamp_(min=tiny).log2_() + (1 - p) * ((1 - p) / (1 - q)).clamp_(min=tiny).log2_()
    return float(bits.numpy().mean(dtype=np.float64))
