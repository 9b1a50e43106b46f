"""HideNseek (Vallapuram et al. 2022): signs over the weights that stay when a random network is pruned once.

The server half is FedPM's with a plain mean, over the kept weights alone: masks of signs come up, their counts go
down. Clients train scores under their own sign, from the mean of all. The paper aims at personal networks;
here, as everywhere, the global one is scored: the sign of the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpm.errors import ConfigError
from fedpm.methods.base import Arrays, Broadcast, ClientResult, Ingredients
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskTrainer, MaskUpdate
from fedpm.registry import CODERS, MethodSpec, Settings, register, setting
from fedpm.rng import Streams
from fedpm.wire.coders.base import Coding
from fedpm.wire.masks import Signs
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.model.pruned import PrunedNetwork
    from fedpm.training.local import Local, Trained

FORM = 7
MODE = "thresholded"
TRAVEL, MOST = 3.0, 0.3
"""How far a score can go in a round, and the highest rate of a step: scores start within ±1.4 (``clamp``)."""


@dataclass(frozen=True)
class SignTrainer:
    """Trains signs of the kept weights, by a trainer of all of them."""

    pruned: PrunedNetwork
    whole: MaskTrainer

    @property
    def local(self) -> Local:
        """How a client trains."""
        return self.whole.local

    def train(self, theta: Vector, *, frozen: torch.Tensor, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Train on one client's examples; the values are 1 for +, 0 for −."""
        start = self.pruned.spread(theta, 0.5)
        trained = self.whole.train(start, frozen=frozen, stats=stats, shard=shard, rng=rng)
        return replace(trained, values=trained.values[self.pruned.kept])


@dataclass(frozen=True)
class HideNseek:
    """``votes`` on a pruned network, reported as what they are: bits for the parameters of the whole one."""

    network: MaskedNetwork
    pruned: PrunedNetwork
    votes: FedPM
    modes: tuple[str, ...] = (MODE,)
    final_modes: tuple[str, ...] = (MODE,)

    def init(self) -> MaskState:
        """Return the state before the first round: nothing but what the seed implies."""
        return self.votes.init()

    def broadcast(self, state: MaskState, *, since: int | None = None) -> Broadcast:
        """Return the message that starts the next round, for a client that holds the one of round ``since`` or none."""
        return self.votes.broadcast(state, since=since)

    def holders(self, state: MaskState) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""
        return self.votes.holders(state)

    def memory(self, state: MaskState) -> bytes:
        """Return what a client that holds the broadcast of the round before remembers of it."""
        return self.votes.memory(state)

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train signs, and send them."""
        result = self.votes.client_update(broadcast, shard, rng, memory)
        share = self.pruned.size / self.network.size
        scaled = {name: value * (share if name.endswith("bpp") else 1) for name, value in result.metrics.items()}
        return replace(result, metrics=scaled)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return what a client keeps of a broadcast, to read brief ones later."""
        return self.votes.remember(broadcast, round, memory)

    def whole(self, broadcast: bytes, round: int, memory: bytes) -> bytes:
        """Return a broadcast in a form that needs no past."""
        return self.votes.whole(broadcast, round, memory)

    def received(self, broadcast: bytes, round: int, memory: bytes = b"") -> MaskState:
        """Return the state as a client knows it that was sent a broadcast."""
        return self.votes.received(broadcast, round, memory)

    def decode(self, state: MaskState, client: int, payload: bytes) -> MaskUpdate:
        """Return a client's signs and norm statistics."""
        return self.votes.decode(state, client, payload)

    def aggregate(self, state: MaskState, updates: Iterable[MaskUpdate]) -> MaskState:
        """Take the mean of the signs."""
        return self.votes.aggregate(state, updates)

    def mask(self, state: MaskState, mode: str) -> Signs | None:
        """Return the sign of the mean of each kept weight, 0 for the others; there is no mask between these."""
        if mode != MODE:
            return None
        up = self.votes.mask(state, MODE)
        signs: Signs = self.pruned.spread((2 * up - 1).astype(np.int8))
        return signs

    def module(self, state: MaskState, mode: str) -> nn.Module:
        """Return the pruned network under the global signs."""
        signs = 2 * self.votes.mask(state, MODE).astype(np.float32) - 1
        weights = self.pruned.weights(self.votes.seed).numpy() * self.pruned.spread(signs)
        return self.network.module(weights, state.stats)

    def stats(self, state: MaskState) -> Vector:
        """Return the norm layers' statistics."""
        return state.stats

    def to_arrays(self, state: MaskState) -> Arrays:
        """Return a state for a checkpoint."""
        return self.votes.to_arrays(state)

    def from_arrays(self, arrays: Arrays) -> MaskState:
        """Return the state of a checkpoint."""
        return self.votes.from_arrays(arrays)


class HideNseekSettings(Settings):
    """The pruning and the clients of HideNseek."""

    keep: float = setting(0.5, "share of the weights that stay", ge=0.1, le=1)
    clamp: float = setting(
        0.2,
        "the mean of signs, as a share of +, is kept in [clamp, 1 − clamp], so that signs can still turn",
        gt=0,
        lt=0.5,
    )


def build(given: Ingredients) -> HideNseek:
    """Return FedPM's server on the pruned network with clients that train signs."""
    from fedpm.model.pruned import PrunedNetwork
    from fedpm.training.scores import ScoreTrainer

    settings: Any = given.tables["hidenseek"]
    if given.example is None:
        raise ConfigError("algorithm: the network is pruned by what flows through it, and needs the form of an input")
    pruned = PrunedNetwork(given.network, given.seed, settings.keep, given.example)
    local = replace(given.local, gradient="identity", travel=TRAVEL, most=MOST)
    coder = CODERS["side-information"]
    votes = FedPM(
        network=pruned,
        seed=given.seed,
        trainer=SignTrainer(pruned, ScoreTrainer(given.network, local, threshold=True, signs=True)),
        coding=Coding.of(coder, coder.build(None)),
        form=FORM,
        aggregator=given.aggregator,
        clamp=settings.clamp,
    )
    return HideNseek(given.network, pruned, votes)


register(
    MethodSpec(
        name="hidenseek",
        label="HideNseek",
        about="trains signs over the weights that stay when a random network is pruned once",
        build=build,
        settings=HideNseekSettings,
        tuned={
            "model.init": "kaiming",
            "local.lr": lambda settings: "auto",
            "local.lr_decay": 1.0,
            "local.lr_fade": 0.0,
        },
        form=FORM,
    )
)
