"""The path that all dense methods share: train, subtract, quantise, send; decode, average, step.

A method is a quantiser, which turns a client's change of weights into bytes and bytes into a change. The server takes
w ← w + η_s · mean of the decoded changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.mean import Mean
from fedpm.errors import WireError
from fedpm.methods.averaging import averaged, read_average
from fedpm.methods.base import DIVERGED, Arrays, Broadcast, ClientResult, check_form
from fedpm.methods.dense.gaussian import GaussianLevels
from fedpm.methods.dense.quantiser import Quantised, Quantiser, Trainer, the_mean
from fedpm.methods.dense.reader import BRIEF, WeightReader
from fedpm.methods.dense.state import Arrivals, DenseState, DenseUpdate, Past
from fedpm.methods.dense.weights import Content, WeightForm, write_steps, write_weights
from fedpm.methods.relay import relayed
from fedpm.methods.statistics import check_statistics, read_floats, write_floats
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True, kw_only=True)
class Deltas:
    """A dense method; ``form`` is the number of its uploads. Round t steps by server_lr · server_decay^(t−1).

    ``direction`` makes the server's step of the mean change: the mean itself, or its sign for a majority vote.
    ``down`` quantises what clients are told to add, if ``broadcast_as`` is "quantised". What it leaves out is added to
    the next step (error feedback), so it should lose less than all: a normalised error below 1. ``average`` is the
    share of the rounds so far whose mean weights are scored; 0 for the last round's alone.
    """

    network: MaskedNetwork
    seed: int
    trainer: Trainer
    quantiser: Quantiser
    form: int
    aggregator: Aggregator = field(default_factory=Mean)
    server_lr: float = 1.0
    server_decay: float = 1.0
    broadcast_as: str = "relay"
    down: Quantiser = field(default_factory=lambda: GaussianLevels(1))
    direction: Callable[[Any], Any] = the_mean
    average: float = 0.0
    modes: tuple[str, ...] = ("weights",)
    final_modes: tuple[str, ...] = ("weights",)

    @cached_property
    def reader(self) -> WeightReader:
        """Reads broadcasts."""
        step = self._relayed if self._brief == WeightForm.RELAYED else self._added
        both = self.trainer.local.lookahead > 0
        return WeightReader(self.network, self.seed, self._brief, step, both=both)

    def init(self) -> DenseState:
        """Return the state before the first round: nothing but what the seed implies."""
        weights = self.network.dense_weights(self.seed)
        return DenseState(0, 0, weights, self.network.initial_stats(), weights)

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train the weights, and send by how much they changed."""
        told = self.reader.read(broadcast, rng.round, memory)
        start = self.trainer.local.start(told.weights, told.before)
        trained = self.trainer.train(start, stats=told.stats, shard=shard, rng=rng)
        form, quantised = DIVERGED, Quantised(Coded(b"", 0.0), 0.0)
        if np.isfinite(trained.values).all():
            shared = Streams(told.seed).at(rng.round, rng.client)
            change = trained.values - told.weights
            form, quantised = self.form, self.quantiser.encode(change, self.network, rng, shared)
        coded = quantised.coded
        fingerprint = self.network.fingerprint(told.seed)
        floats = write_floats(self.network, trained.stats, told.stats)
        named = (Kind.UPLOAD, form, fingerprint, rng.round, rng.client)
        message = Message(*named, coded.data, trained.stats, floats)
        metrics = {
            **trained.metrics,
            "uplink_ideal_bpp": coded.ideal_bits / self.network.size,
            "uplink_paper_bpp": quantised.paper_bpp,
        }
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return the broadcast in a form that needs no past, or nothing if none will build on it."""
        if self._brief is None:
            return b""
        if Message.from_bytes(broadcast).form not in (*BRIEF, WeightForm.STEPS):
            return broadcast
        told = self.reader.read(broadcast, round, memory)
        return self._full(Content(told.seed, round, told.weights, told.stats)).payload

    def whole(self, broadcast: bytes, round: int, memory: bytes) -> bytes:
        """Return a broadcast in a form that needs no past; who is sent it does not look ahead."""
        return self.remember(broadcast, round, memory)

    def received(self, broadcast: bytes, round: int, memory: bytes = b"") -> DenseState:
        """Return the state as a client knows it that was sent a broadcast."""
        told = self.reader.read(broadcast, round, memory)
        return DenseState(round - 1, 0, told.weights, told.stats, told.weights)

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: DenseState, *, since: int | None = None) -> Broadcast:
        """Return the weights, or the seed alone while they are its own, or what was added since then."""
        content = self._content(state)
        full = self._full(content)
        steps = state.past.since(since, content.round)
        if not steps or self._brief is None:
            return full
        return min(full, write_steps(content, self.network, self._brief, steps), key=lambda form: len(form.payload))

    @property
    def _brief(self) -> WeightForm | None:
        """The form of what is added by a round, if clients are told that."""
        return {"relay": WeightForm.RELAYED, "quantised": WeightForm.QUANTISED}.get(self.broadcast_as)

    def _content(self, state: DenseState) -> Content:
        return Content(self.seed, state.round + 1, state.told if state.steps else None, state.stats)

    def _full(self, content: Content) -> Broadcast:
        return write_weights(content, self.network, "float32" if self._brief else self.broadcast_as)

    def holders(self, state: DenseState) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""
        return state.past.holders

    def memory(self, state: DenseState) -> bytes:
        """Return what a client that holds the broadcast of the round before remembers of it."""
        return state.past.before

    def decode(self, state: DenseState, client: int, payload: bytes) -> DenseUpdate:
        """Return a client's change of weights and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.network.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.network.stats_size)
        check_form(message.form, self.form, ": of another method")
        stats = read_floats(self.network, message, state.stats)
        check_statistics(self.network, stats)
        delta = self._change(message.coded, state.round + 1, client)
        return DenseUpdate(delta, stats, client, message.coded)

    def aggregate(self, state: DenseState, updates: Iterable[DenseUpdate]) -> DenseState:
        """Step along the mean change."""
        number = state.round + 1
        arrived = Arrivals(self.network, keep_uploads=self.broadcast_as == "relay")
        weights = self._stepped(state.weights, number, arrived.changes(updates))
        if not arrived.clients:  # nobody answered: the weights stay
            return replace(state, round=number, past=Past())
        told, step = weights, arrived.uploads
        if self.broadcast_as == "quantised":
            told, step = self._quantised(state.told, number, weights)
        past = Past()
        if step is not None:
            before = self._full(self._content(state)).payload
            past = state.past.then(before, step, arrived.clients, number, 4 * self.network.size)
        stats = arrived.stats.aggregate(state.stats)
        average = averaged(state.average, weights, stats, share=self.average, round=number)
        return DenseState(number, state.steps + 1, weights, stats, told, past, average)

    def _stepped(self, weights: Vector, round: int, changes: Iterable[Vector]) -> Vector:
        """Return the weights after a round's changes; a client to which uploads are passed on does the same."""
        folded = self.aggregator.fold(changes, self.network.size, np.float64)
        if not folded.count:
            return weights
        step = self.server_lr * self.server_decay ** (round - 1) * self.direction(folded.mean())
        moved: Vector = (weights + step).astype(np.float32)
        return moved

    def _relayed(self, weights: Vector, round: int, step: bytes) -> Vector:
        """Return the weights after uploads that a broadcast passed on."""
        uploads = relayed(step)
        if not uploads:
            raise WireError("broadcast relays no upload: it is damaged")
        return self._stepped(weights, round, (self._change(coded, round, client) for client, coded in uploads))

    def _added(self, weights: Vector, round: int, step: bytes) -> Vector:
        """Return the weights that clients are told of after a quantised step."""
        with np.errstate(over="ignore", invalid="ignore"):
            return weights + self.down.decode(step, self.network, Streams(self.seed).at(round))

    def _quantised(self, told: Vector, round: int, weights: Vector) -> tuple[Vector, bytes | None]:
        """Return what clients are told next, and the step to it; no step leads to weights that are out of bounds."""
        shared = Streams(self.seed).at(round)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                step = self.down.encode(weights - told, self.network, shared, shared).coded.data
            return self._added(told, round, step), step
        except WireError:
            return weights, None

    def _change(self, coded: bytes, round: int, client: int) -> Vector:
        """Return a client's change of a round, or raise WireError."""
        with np.errstate(over="ignore", invalid="ignore"):
            delta = self.quantiser.decode(coded, self.network, Streams(self.seed).at(round, client))
        if not np.isfinite(delta).all():
            raise WireError("upload decodes to a change that is not finite: it is damaged")
        return delta

    def to_arrays(self, state: DenseState) -> Arrays:
        """Return a state for a checkpoint."""
        numbers = np.array([state.round, state.steps])
        arrays = {"dense_state": numbers, "weights": state.weights, "stats": state.stats, "told": state.told}
        return {**arrays, **(state.average.to_arrays() if state.average else {}), **state.past.to_arrays()}

    def from_arrays(self, arrays: Arrays) -> DenseState:
        """Return the state of a checkpoint."""
        round, steps = arrays["dense_state"].tolist()
        told, past = arrays["told"], Past.from_arrays(arrays)
        return DenseState(round, steps, arrays["weights"], arrays["stats"], told, past, read_average(arrays))

    # -- the global model ---------------------------------------------------------------------------------

    def mask(self, state: DenseState, mode: str) -> None:
        """Return None: a dense network is no mask."""

    def module(self, state: DenseState, mode: str) -> nn.Module:
        """Return the network with the global weights."""
        return self.network.module(state.scored.values, state.scored.stats)

    def stats(self, state: DenseState) -> Vector:
        """Return the norm layers' statistics."""
        return state.scored.stats
