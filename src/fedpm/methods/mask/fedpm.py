"""FedPM: federated training of a probability mask (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.mean import Mean
from fedpm.aggregation.posterior import UNIT, AggregationSettings, Posterior, kept_quarters, resets
from fedpm.errors import ConfigError
from fedpm.methods.averaging import averaged
from fedpm.methods.base import DIVERGED, Arrays, Broadcast, ClientResult, Ingredients, check_form
from fedpm.methods.mask.downlink import Addition, Content, DownlinkWriter, context
from fedpm.methods.mask.effort import PRIVATE, TUNED, FedPMSettings, networks, trainer
from fedpm.methods.mask.history import History
from fedpm.methods.mask.reader import DownlinkReader
from fedpm.methods.mask.state import Arrivals, MaskState, MaskTrainer, MaskUpdate
from fedpm.methods.statistics import check_statistics, read_floats, rounded, write_floats
from fedpm.registry import MethodSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Coding, Context
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask, entropy, sample_mask
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.rounding import Calibration

CLAMP = 0.01
"""Clients keep θ in [0.01, 0.99] before the logit, which is infinite at 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class FedPM:
    """FedPM with Bayesian aggregation; ``reset_every=1`` with ``lam0=1`` is the plain mean of Section 3.1.2.

    Args:
        network: the frozen network.
        seed: names its weights and the initial θ.
        trainer: trains a client's probability mask.
        coding: codes its sample.
        form: the number of uploads on the wire, if not the coder's own.
        aggregator: folds the masks of a round.
        lam0: the prior, λ0 of both Beta parameters.
        reset_every: rounds between resets of the prior, γ.
        kept: the quarters of earlier counts that remain when a round ends; fewer than all instead of resets.
        relay: whether broadcasts may pass the last uploads on where that is shorter.
        clamp: clients start from θ in [clamp, 1 − clamp].
        calibration: rounds θ to a mask that keeps what layers give, on examples of the server's.
        average: the share of the rounds so far whose mean θ becomes a mask; 0 for the last round's alone.
        modes: the global networks that are evaluated; ``final_modes`` are those that can be shipped.
    """

    network: MaskedNetwork
    seed: int
    trainer: MaskTrainer
    coding: Coding
    form: int | None = None
    aggregator: Aggregator = field(default_factory=Mean)
    lam0: int = 1
    reset_every: int = 1
    kept: int = UNIT
    relay: bool = True
    clamp: float = CLAMP
    calibration: Calibration | None = None
    average: float = 0.0
    modes: tuple[str, ...] = ("sampled", "thresholded", "expected")
    final_modes: tuple[str, ...] = ("sampled", "thresholded")

    @cached_property
    def writer(self) -> DownlinkWriter:
        """Writes broadcasts."""
        return DownlinkWriter(self.network, self.coding, self.kept, self.trainer.local.lookahead)

    @cached_property
    def reader(self) -> DownlinkReader:
        """Reads them."""
        return DownlinkReader(self.network, self.coding, self.seed, self.kept, self.trainer.local.lookahead)

    def init(self) -> MaskState:
        """Return the state before the first round: nothing but what the seed implies."""
        initial, stats = Posterior.initial(self.network, self.seed), self.network.initial_stats()
        return MaskState(0, initial, stats, 0, self._anew(0, initial, stats))

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train a probability mask from the server's, and send one sample of it (Section 3.1.1)."""
        told = self.reader.read(broadcast, rng.round, memory)
        start, frozen = told.start.floats().clip(self.clamp, 1 - self.clamp), self.network.weights(told.seed)
        trained = self.trainer.train(start, frozen=frozen, stats=told.stats, shard=shard, rng=rng)
        known = context(self.network, told, rng.client)
        form, mask, coded = DIVERGED, np.zeros(1, np.uint8), Coded(b"", 0.0)  # any sample of NaN would be zeros
        if not np.isnan(trained.values).any():
            form, (mask, coded) = self.upload_form, self.coding.coder.encode(trained.values, known, private=rng)
        floats = write_floats(self.network, trained.stats, told.stats)
        named = (Kind.UPLOAD, form, self.network.fingerprint(told.seed), rng.round, rng.client)
        message = Message(*named, coded.data, trained.stats, floats)
        ideal, paper = coded.ideal_bits / self.network.size, entropy(float(mask.mean(dtype=np.float64)))
        metrics = {**trained.metrics, "uplink_ideal_bpp": ideal, "uplink_paper_bpp": paper}
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return what a client keeps of a broadcast, to read brief ones later."""
        return self.whole(broadcast, round, memory)

    def whole(self, broadcast: bytes, round: int, memory: bytes) -> bytes:
        """Return a broadcast in a form that needs no past."""
        return self.writer.whole(self.reader.read(broadcast, round, memory)).payload

    def received(self, broadcast: bytes, round: int, memory: bytes = b"") -> MaskState:
        """Return the state as a client knows it that was sent a broadcast."""
        told = self.reader.read(broadcast, round, memory)
        return MaskState(round - 1, told.posterior, told.stats, 0, History(self.writer, told))

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: MaskState, *, since: int | None = None) -> Broadcast:
        """Return the message that starts the next round, for a client that holds the one of round ``since`` or none."""
        return state.history.broadcast(since)

    def holders(self, state: MaskState) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""
        return state.history.window.holders

    def memory(self, state: MaskState) -> bytes:
        """Return what a client that holds the broadcast of the round before remembers of it."""
        return state.history.window.before

    def decode(self, state: MaskState, client: int, payload: bytes) -> MaskUpdate:
        """Return a client's mask and norm statistics."""
        message, network = Message.from_bytes(payload), self.network
        message.expect(Kind.UPLOAD, network.fingerprint(self.seed), state.round + 1, client, network.stats_size)
        check_form(message.form, self.upload_form, f" ({self.coding.name}): of another method or coder")
        stats = read_floats(self.network, message, state.stats)
        check_statistics(self.network, stats)
        mask = self.coding.coder.decode(message.coded, self.context(state, client))
        return MaskUpdate(client, mask, stats, message.coded)

    def aggregate(self, state: MaskState, updates: Iterable[MaskUpdate]) -> MaskState:
        """Fold the clients' masks into the posterior (Algorithm 2), one at a time."""
        arrived = Arrivals(self.network, self.aggregator, relay=self.relay)
        masks = arrived.fold(updates, state.start)
        if not masks.count:
            return self._unchanged(state)
        posterior = state.learned(masks.total, masks.count, self.lam0, self.reset_every, self.kept)
        told, clients = state.history.content, tuple(arrived.clients)
        added = Addition(told, clients, masks.count, self.aggregator.sums, arrived.uploads or b"")
        stats = rounded(self.network, arrived.stats.aggregate(state.stats), state.stats)  # as clients can have them
        return replace(self._after(state, posterior, stats, added), rejected=arrived.rejected)

    def context(self, state: MaskState, client: int) -> Context:
        """Return what a client and the server both know when it answers the next broadcast."""
        return context(self.network, state.history.content, client)

    def to_arrays(self, state: MaskState) -> Arrays:
        """Return a state for a checkpoint."""
        return state.to_arrays()

    def from_arrays(self, arrays: Arrays) -> MaskState:
        """Return the state of a checkpoint."""
        return MaskState.from_arrays(arrays, self.writer, self.seed, self.lam0)

    def _after(self, state: MaskState, posterior: Posterior, stats: Vector, added: Addition) -> MaskState:
        """Return the state after a round that added something to what its broadcast said."""
        content = added.before.then(posterior, stats, self.writer.lookahead)
        history, number = History(self.writer, content, state.history.window, added), state.round + 1
        mean = averaged(state.average, posterior.theta.floats(), stats, share=self.average, round=number)
        return MaskState(number, posterior, stats, number, history, average=mean)

    def _unchanged(self, state: MaskState) -> MaskState:
        """Return the state after a round that nobody answered: the belief stays, and nothing is ahead of it."""
        history = self._anew(state.round + 1, state.posterior, state.stats)
        return replace(state, round=state.round + 1, history=history, rejected={})

    def _anew(self, round: int, posterior: Posterior, stats: Vector) -> History:
        """Return a history from which clients are told all, and start from that."""
        return History(self.writer, Content(self.seed, round + 1, posterior, stats))

    @property
    def upload_form(self) -> int:
        """The number of uploads on the wire."""
        return self.coding.form if self.form is None else self.form

    # -- the global model ---------------------------------------------------------------------------------

    def mask(self, state: MaskState, mode: str) -> Mask | Vector:
        """Return the global mask: one sample of Bern(θ), θ > 0.5, θ rounded by layers, or θ itself (expected)."""
        if mode == "expected":
            return state.posterior.theta.floats()
        theta = state.scored.values
        if mode == "thresholded":
            return (theta > 0.5).astype(np.uint8)
        if mode == "calibrated" and self.calibration is not None:
            return self.calibration.mask(theta, self.network.weights(self.seed), state.scored.stats)
        return sample_mask(theta, Streams(self.seed).at(state.round).uint32("global mask", len(theta)))

    def module(self, state: MaskState, mode: str) -> nn.Module:
        """Return the frozen network under the global mask."""
        shown = state if mode == "expected" else state.scored
        return self.network.masked_module(self.mask(state, mode), self.seed, shown.stats)

    def stats(self, state: MaskState) -> Vector:
        """Return the norm layers' statistics."""
        return state.scored.stats


def build(given: Ingredients) -> FedPM:
    """Return FedPM with the parts of a run."""
    settings: Any = given.tables["aggregation"]
    if given.coding is None:
        raise ConfigError("codec: FedPM sends masks, and needs a coder for them")
    return FedPM(
        network=given.network,
        seed=given.seed,
        trainer=trainer(given),
        coding=given.coding,
        aggregator=given.aggregator,
        lam0=settings.lam0,
        reset_every=resets(settings.reset_every, given.clients, given.per_round),
        kept=kept_quarters(settings.discount, given.per_round),
        relay=settings.relay is not False,
        average=given.average,
        **networks(given),
    )


register(
    MethodSpec(
        name="fedpm",
        label="FedPM",
        about="trains a probability mask over frozen weights, and sends samples of it",
        build=build,
        settings=FedPMSettings,
        tuned=TUNED,
        private=PRIVATE,
        shared={"aggregation": AggregationSettings},
        sampled=True,
    )
)
