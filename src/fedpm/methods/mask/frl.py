"""FRL, federated rank learning (Mozaffari et al. 2023): clients rank the weights of each layer, and ranks are votes.

A client's scores start in the order of the global ranks, are trained while each layer keeps the weights with the
highest (edge-popup), and go up as ranks. The server adds the ranks up, and ranks the sums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Aggregator
from fedpm.aggregation.mean import Mean
from fedpm.errors import WireError
from fedpm.methods.base import DIVERGED, Arrays, Broadcast, ClientResult, Ingredients, check_form
from fedpm.methods.relay import join, split
from fedpm.methods.statistics import Floats, check_statistics
from fedpm.registry import MethodSpec, Settings, register, setting
from fedpm.rng import SERVER, Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask
from fedpm.wire.message import Kind, Message
from fedpm.wire.permutation import decode_order, encode_order
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.training.ranks import RankTrainer

FORM = 8
MODE = "thresholded"
TRAVEL, MOST = 0.2, 0.03
"""How far a score can go in a round, and the highest rate of a step; all scores of a layer lie in an interval of 1."""
Ranks = npt.NDArray[np.int64]
_SEED = struct.Struct("<Q")


class RankForm(IntEnum):
    """How a broadcast of ranks is coded; the numbers are none of those of masks and weights."""

    SEED = 32
    ORDERS = 33


@dataclass(frozen=True)
class RankState:
    """The server's state: the rank of each weight in its layer, 0 being the least; those of the seed until a vote."""

    round: int
    votes: int
    ranks: Ranks
    stats: Vector


@dataclass(frozen=True)
class RankUpdate:
    """A decoded upload."""

    ranks: Ranks
    stats: Vector


@dataclass(frozen=True, kw_only=True)
class RankLearning:
    """Each layer keeps the share ``keep`` of its frozen weights that is ranked highest."""

    network: MaskedNetwork
    seed: int
    trainer: RankTrainer
    keep: float
    aggregator: Aggregator = field(default_factory=Mean)
    modes: tuple[str, ...] = (MODE,)
    final_modes: tuple[str, ...] = (MODE,)

    def init(self) -> RankState:
        """Return the state before the first round: the order of the seed's words."""
        words = Streams(self.seed).words("initial ranks", self.network.size)
        return RankState(0, 0, self._ranked(words), self.network.initial_stats())

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train scores that start in the order of the global ranks, and send their order."""
        ranks, stats = self.read(broadcast, rng.round)
        frozen = self.network.weights(self.seed)
        trained = self.trainer.train(self._scores(ranks), frozen=frozen, stats=stats, shard=shard, rng=rng)
        diverged = np.isnan(trained.values).any()
        coded = Coded(b"", 0.0) if diverged else self._coded(self._ranked(trained.values))
        form, fingerprint = DIVERGED if diverged else FORM, self.network.fingerprint(self.seed)
        message = Message(Kind.UPLOAD, form, fingerprint, rng.round, rng.client, coded.data, trained.stats)
        plain = float(sum(part.size * np.log2(part.size) for part in self.network.parts))  # so many bits a rank
        bits = {"uplink_ideal_bpp": coded.ideal_bits, "uplink_paper_bpp": plain}
        return ClientResult(message.to_bytes(), trained.metrics | {n: b / self.network.size for n, b in bits.items()})

    def read(self, broadcast: bytes, round: int) -> tuple[Ranks, Vector]:
        """Return ranks and statistics of a broadcast, or raise WireError."""
        message = Message.from_bytes(broadcast)
        if message.form not in set(RankForm) or len(message.coded) < _SEED.size:
            raise WireError(f"broadcast of form {message.form}, {len(message.coded)} bytes: it holds no ranks")
        first = message.form == RankForm.SEED
        stats_size = 0 if first else self.network.stats_size
        message.expect(Kind.BROADCAST, self.network.fingerprint(self.seed), round, SERVER, stats_size)
        (seed,) = _SEED.unpack_from(message.coded)
        if seed != self.seed or (first and len(message.coded) > _SEED.size):
            raise WireError(f"broadcast of seed {seed} instead of {self.seed}: of another run, or damaged")
        if first:
            return self.init().ranks, self.network.initial_stats()
        return self._orders(message.coded[_SEED.size :]), message.stats

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return nothing: no broadcast builds on another."""
        return b""

    def whole(self, broadcast: bytes, round: int, memory: bytes) -> bytes:
        """Return the broadcast: none needs a past."""
        return broadcast

    def received(self, broadcast: bytes, round: int, memory: bytes = b"") -> RankState:
        """Return the state as a client knows it that was sent a broadcast."""
        return RankState(round - 1, 0, *self.read(broadcast, round))

    # -- on the server ------------------------------------------------------------------------------------

    def broadcast(self, state: RankState, *, since: int | None = None) -> Broadcast:
        """Return the global ranks, or the seed alone while they are its own."""
        coded = self._coded(state.ranks) if state.votes else Coded(b"", 0.0)
        form, stats = (RankForm.ORDERS, state.stats) if state.votes else (RankForm.SEED, state.stats[:0])
        fingerprint, body = self.network.fingerprint(self.seed), _SEED.pack(self.seed) + coded.data
        message = Message(Kind.BROADCAST, form, fingerprint, state.round + 1, SERVER, body, stats)
        return Broadcast(message.to_bytes(), coded.ideal_bits)

    def holders(self, state: RankState) -> dict[int, int]:
        """Return nobody: the last uploads take more bytes than the ranks."""
        return {}

    def memory(self, state: RankState) -> bytes:
        """Return nothing."""
        return b""

    def decode(self, state: RankState, client: int, payload: bytes) -> RankUpdate:
        """Return a client's ranks and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.network.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.network.stats_size)
        check_form(message.form, FORM, ": of another method")
        check_statistics(self.network, message.stats)
        return RankUpdate(self._orders(message.coded), message.stats)

    def aggregate(self, state: RankState, updates: Iterable[RankUpdate]) -> RankState:
        """Rank the weights of each layer by the sum of their ranks."""
        stats = Floats(self.network)

        def votes() -> Iterator[Ranks]:
            for update in updates:
                stats.add(update.stats)
                yield update.ranks

        folded = self.aggregator.fold(votes(), self.network.size, np.int64)
        if not folded.count:  # nobody answered: the ranks stay
            return replace(state, round=state.round + 1)
        return RankState(state.round + 1, state.votes + 1, self._ranked(folded.mean()), stats.aggregate(state.stats))

    def to_arrays(self, state: RankState) -> Arrays:
        """Return a state for a checkpoint."""
        return {"rank_state": np.array([state.round, state.votes]), "ranks": state.ranks, "stats": state.stats}

    def from_arrays(self, arrays: Arrays) -> RankState:
        """Return the state of a checkpoint."""
        round, votes = arrays["rank_state"].tolist()
        return RankState(round, votes, arrays["ranks"], arrays["stats"])

    def _ranked(self, values: npt.NDArray[Any]) -> Ranks:
        """Return the rank of each value in its layer; of equal ones the first is lower."""
        ranks = np.empty(self.network.size, np.int64)
        for layer, found in zip(self.network.pieces(values), self.network.pieces(ranks), strict=True):
            found[np.argsort(layer, kind="stable")] = np.arange(len(layer))
        return ranks

    def _scores(self, ranks: Ranks) -> Vector:
        """Return evenly spaced scores in this order, those of kept weights above 0."""
        sizes = [part.size for part in self.network.parts]
        scores: Vector = ((ranks + 0.5) / np.repeat(sizes, sizes) - (1 - self.keep)).astype(np.float32)
        return scores

    def _coded(self, ranks: Ranks) -> Coded:
        layers = [encode_order(layer) for layer in self.network.pieces(ranks)]
        return Coded(join([layer.data for layer in layers]), sum(layer.ideal_bits for layer in layers))

    def _orders(self, data: bytes) -> Ranks:
        parts = self.network.parts
        layers = split(data, len(parts))
        if len(layers) != len(parts):
            raise WireError(f"ranks of {len(layers)} layers instead of {len(parts)}: they were cut")
        return np.concatenate([decode_order(layer, part.size) for layer, part in zip(layers, parts, strict=True)])

    def mask(self, state: RankState, mode: str) -> Mask | None:
        """Return which weights are ranked highest; there is no mask between these."""
        return self._kept(state) if mode == MODE else None

    def module(self, state: RankState, mode: str) -> nn.Module:
        """Return the frozen network with the weights that are ranked highest."""
        return self.network.masked_module(self._kept(state), self.seed, state.stats)

    def _kept(self, state: RankState) -> Mask:
        layers = zip(self.network.pieces(state.ranks), self.trainer.kept, strict=True)
        return np.concatenate([ranks >= len(ranks) - kept for ranks, kept in layers]).astype(np.uint8)

    def stats(self, state: RankState) -> Vector:
        """Return the norm layers' statistics."""
        return state.stats


class FRLSettings(Settings):
    """The network of FRL."""

    keep: float = setting(0.5, "share of each layer's weights that is kept", gt=0, le=1)


def build(given: Ingredients) -> RankLearning:
    """Return the method with the parts of a run."""
    from fedpm.training.ranks import RankTrainer

    settings: Any = given.tables["frl"]
    kept = [max(1, round(settings.keep * part.size)) for part in given.network.parts]
    trainer = RankTrainer(given.network, replace(given.local, travel=TRAVEL, most=MOST), kept)
    return RankLearning(
        network=given.network, seed=given.seed, trainer=trainer, keep=settings.keep, aggregator=given.aggregator
    )


register(
    MethodSpec(
        name="frl",
        label="FRL",
        about="ranks the weights of each layer, and sends the ranks as votes",
        build=build,
        settings=FRLSettings,
        tuned={"model.init": "half", "local.lr": lambda settings: "auto", "local.lr_decay": 1.0},
        form=FORM,
    )
)
