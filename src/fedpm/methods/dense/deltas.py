"""The path that all dense methods share: train, subtract, quantise, send; decode, average, step.

A method is a quantiser, which turns a client's change of weights into bytes and bytes into a change. The server takes
w ← w + η_s · mean of the decoded changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.mean import Mean
from fedpm.errors import WireError
from fedpm.methods.base import Arrays, Broadcast, ClientResult
from fedpm.methods.dense.quantiser import Quantised, Quantiser, the_mean
from fedpm.methods.dense.weights import Content, read_weights, write_weights
from fedpm.methods.statistics import NormStatistics, check_statistics
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.message import Kind, Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.weights import WeightTrainer

DIVERGED = 0
"""The form of an upload that holds nothing, because training ended in weights that are not finite."""


@dataclass(frozen=True)
class DenseState:
    """The server's state; after ``steps`` = 0 steps the weights are those of the seed."""

    round: int
    steps: int
    weights: Vector
    stats: Vector


@dataclass(frozen=True)
class DenseUpdate:
    """A decoded upload."""

    delta: Vector
    stats: Vector


@dataclass(frozen=True, kw_only=True)
class Deltas:
    """A dense method; ``form`` is the number of its uploads. Round t steps by server_lr · server_decay^(t−1).

    ``direction`` makes the server's step of the mean change: the mean itself, or its sign for a majority vote.
    """

    network: MaskedNetwork
    seed: int
    trainer: WeightTrainer
    quantiser: Quantiser
    form: int
    aggregator: Aggregator = field(default_factory=Mean)
    server_lr: float = 1.0
    server_decay: float = 1.0
    broadcast_as: str = "float32"
    direction: Callable[[Any], Any] = the_mean
    modes: tuple[str, ...] = ("weights",)
    final_modes: tuple[str, ...] = ("weights",)

    def init(self) -> DenseState:
        """Return the state before the first round: nothing but what the seed implies."""
        return DenseState(0, 0, self.network.dense_weights(self.seed), self.network.initial_stats())

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train the weights, and send by how much they changed."""
        told = read_weights(broadcast, self.network, rng.round, self.seed)
        trained = self.trainer.train(told.weights, stats=told.stats, shard=shard, rng=rng)
        form, quantised = DIVERGED, Quantised(Coded(b"", 0.0), 0.0)
        if np.isfinite(trained.values).all():
            shared = Streams(told.seed).at(rng.round, rng.client)
            change = trained.values - told.weights
            form, quantised = self.form, self.quantiser.encode(change, self.network, rng, shared)
        coded = quantised.coded
        fingerprint = self.network.fingerprint(told.seed)
        message = Message(Kind.UPLOAD, form, fingerprint, rng.round, rng.client, coded.data, trained.stats)
        metrics = {
            **trained.metrics,
            "uplink_ideal_bpp": coded.ideal_bits / self.network.size,
            "uplink_paper_bpp": quantised.paper_bpp,
        }
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return nothing: broadcasts of weights build on no earlier one."""
        return b""

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: DenseState, *, since: int | None = None) -> Broadcast:
        """Return the weights, or the seed alone while they are its own."""
        content = Content(self.seed, state.round + 1, state.weights if state.steps else None, state.stats)
        return write_weights(content, self.network, self.broadcast_as)

    def holders(self, state: DenseState) -> dict[int, int]:
        """Return nobody: no client needs to remember anything."""
        return {}

    def memory(self, state: DenseState) -> bytes:
        """Return nothing."""
        return b""

    def decode(self, state: DenseState, client: int, payload: bytes) -> DenseUpdate:
        """Return a client's change of weights and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.network.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.network.stats_size)
        if message.form == DIVERGED:
            raise WireError("the client's training diverged, so it sent no change; lower local.lr", "diverged")
        if message.form != self.form:
            raise WireError(f"upload of form {message.form} instead of {self.form}: of another method")
        check_statistics(self.network, message.stats)
        with np.errstate(over="ignore", invalid="ignore"):
            shared = Streams(self.seed).at(state.round + 1, client)
            delta = self.quantiser.decode(message.coded, self.network, shared)
        if not np.isfinite(delta).all():
            raise WireError("upload decodes to a change that is not finite: it is damaged")
        return DenseUpdate(delta, message.stats)

    def aggregate(self, state: DenseState, updates: Iterable[DenseUpdate]) -> DenseState:
        """Step along the mean change."""
        stats = NormStatistics()

        def changes() -> Iterable[Vector]:
            for update in updates:
                stats.add(update.stats)
                yield update.delta

        folded = self.aggregator.fold(changes(), self.network.size, np.float64)
        if not folded.count:  # nobody answered: the weights stay
            return replace(state, round=state.round + 1)
        step = self.server_lr * self.server_decay**state.round * self.direction(folded.mean())
        return DenseState(
            round=state.round + 1,
            steps=state.steps + 1,
            weights=(state.weights + step).astype(np.float32),
            stats=stats.median(),
        )

    def to_arrays(self, state: DenseState) -> Arrays:
        """Return a state for a checkpoint."""
        numbers = np.array([state.round, state.steps])
        return {"dense_state": numbers, "weights": state.weights, "stats": state.stats}

    def from_arrays(self, arrays: Arrays) -> DenseState:
        """Return the state of a checkpoint."""
        round, steps = arrays["dense_state"].tolist()
        return DenseState(round, steps, arrays["weights"], arrays["stats"])

    # -- the global model ---------------------------------------------------------------------------------

    def mask(self, state: DenseState, mode: str) -> None:
        """Return None: a dense network is no mask."""

    def module(self, state: DenseState, mode: str) -> nn.Module:
        """Return the network with the global weights."""
        return self.network.module(state.weights, state.stats)

    def stats(self, state: DenseState) -> Vector:
        """Return the norm layers' statistics."""
        return state.stats
