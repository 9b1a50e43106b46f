"""The path that all dense methods share: train, subtract, quantise, send; decode, average, step.

A method is a quantiser, which turns a client's change of weights into bytes and bytes into a change. The server takes
w ← w + η_s · mean of the decoded changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fedpm.data.datasets import Shard
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast, ClientResult
from fedpm.methods.dense.weights import Content, read_weights, write_weights
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.training.local import Local, train_weights
from fedpm.wire.entropy import Coded
from fedpm.wire.message import Kind, Message

DIVERGED = 0
"""The form of an upload that holds nothing, because training ended in weights that are not finite."""


@dataclass(frozen=True)
class Quantised:
    """A coded change of weights, and the bits per parameter that the paper would report for it (docs/baselines.md)."""

    coded: Coded
    paper_bpp: float


class Quantiser(Protocol):
    """Turns changes of weights into bytes and back."""

    @property
    def form(self) -> int:
        """The method's number on the wire."""

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Code a finite change; ``rng`` is the client's own, and both ends hold ``shared``."""

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the change, or raise WireError; values may be infinite, which the caller refuses."""


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


@dataclass(frozen=True)
class Deltas:
    """A dense method. Round t trains with lr · lr_decay^(t−1) and steps by server_lr · server_decay^(t−1).

    ``direction`` makes the server's step of the mean change: the mean itself, or its sign for a majority vote.
    """

    masked: MaskedNetwork
    seed: int
    local: Local
    quantiser: Quantiser
    server_lr: float = 1.0
    lr_decay: float = 1.0
    server_decay: float = 1.0
    broadcast_as: str = "float32"
    direction: Callable[..., Vector] = np.asarray
    modes: tuple[str, ...] = ("weights",)
    final_modes: tuple[str, ...] = ("weights",)

    def init(self) -> DenseState:
        """Return the state before the first round: nothing but what the seed implies."""
        return DenseState(0, 0, self.masked.dense_weights(self.seed), self.masked.initial_stats())

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train the weights, and send by how much they changed."""
        received = read_weights(broadcast, self.masked, rng.round)
        how = replace(self.local, lr=self.local.lr * self.lr_decay ** (rng.round - 1))
        weights, stats, loss = train_weights(self.masked, received.weights, received.stats, shard, rng, how)
        form, found = DIVERGED, Quantised(Coded(b"", 0.0), 0.0)
        if np.isfinite(weights).all():
            shared = Streams(received.seed).at(rng.round, rng.client)
            form, found = (
                self.quantiser.form,
                self.quantiser.encode(weights - received.weights, self.masked, rng, shared),
            )
        fingerprint = self.masked.fingerprint(received.seed)
        message = Message(Kind.UPLOAD, form, fingerprint, rng.round, rng.client, found.coded.data, stats)
        metrics = {
            "train_loss": loss,
            "uplink_ideal_bpp": found.coded.ideal_bits / self.masked.size,
            "uplink_paper_bpp": found.paper_bpp,
        }
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return nothing: broadcasts of weights build on no earlier one."""
        return b""

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: DenseState, *, since: int | None = None) -> Broadcast:
        """Return the weights, or the seed alone while they are its own."""
        content = Content(self.seed, state.round + 1, state.weights if state.steps else None, state.stats)
        return write_weights(content, self.masked, self.broadcast_as)

    def holders(self, state: DenseState) -> dict[int, int]:
        """Return nobody: no client needs to remember anything."""
        return {}

    def memory(self, state: DenseState) -> bytes:
        """Return nothing."""
        return b""

    def decode(self, state: DenseState, client: int, payload: bytes) -> DenseUpdate:
        """Return a client's change of weights and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.masked.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.masked.stats_size)
        if message.form == DIVERGED:
            raise WireError("the client's training diverged, so it sent no change; lower local.lr", "diverged")
        if message.form != self.quantiser.form:
            raise WireError(f"upload of form {message.form} instead of {self.quantiser.form}: of another method")
        with np.errstate(over="ignore", invalid="ignore"):
            shared = Streams(self.seed).at(state.round + 1, client)
            delta = self.quantiser.decode(message.coded, self.masked, shared)
        if not np.isfinite(delta).all():
            raise WireError("upload decodes to a change that is not finite: it is damaged")
        return DenseUpdate(delta, message.stats)

    def aggregate(self, state: DenseState, updates: Iterable[DenseUpdate]) -> DenseState:
        """Step along the mean change, which is summed one client at a time."""
        delta = np.zeros(self.masked.size, np.float64)
        stats = np.zeros(self.masked.stats_size, np.float64)
        count = 0
        for update in updates:
            delta += update.delta
            stats += update.stats
            count += 1
        if not count:  # nobody answered: the weights stay
            return replace(state, round=state.round + 1)
        step = self.server_lr * self.server_decay**state.round * self.direction(delta / count)
        return DenseState(
            round=state.round + 1,
            steps=state.steps + 1,
            weights=(state.weights + step).astype(np.float32),
            stats=(stats / count).astype(np.float32),
        )

    # -- the global model ---------------------------------------------------------------------------------

    def mask(self, state: DenseState, mode: str) -> None:
        """Return None: a dense network is no mask."""

    def network(self, state: DenseState, mode: str) -> nn.Module:
        """Return the network with the global weights."""
        return self.masked.module(torch.from_numpy(state.weights), state.stats)
