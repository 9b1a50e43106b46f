"""FedPM: federated training of a probability mask (Algorithm 1)."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpm.algorithms.base import ClientResult
from fedpm.algorithms.posterior import Posterior, reset_due
from fedpm.codec.counts import decode_counts, encode_counts
from fedpm.codec.masks import Mask, decode_frequency, encode_frequency, entropy
from fedpm.codec.message import Kind, Message
from fedpm.data.datasets import Shard
from fedpm.errors import WireError
from fedpm.masking import MaskedNetwork, Vector
from fedpm.rng import SERVER, Streams
from fedpm.training import Local, train_scores

CLAMP = 0.01
"""Clients keep θ in [0.01, 0.99] before the logit, which is infinite at 0 and 1."""

INITIAL_TOTAL = 2**16
INITIAL_LEVELS = np.array(
    [round(INITIAL_TOTAL / (1 + exp(-NormalDist().inv_cdf((i + 0.5) / 256)))) for i in range(256)], np.uint32
)
"""θ = sigmoid(s), s ~ N(0, 1), in 256 equally likely levels and in integers, so that all machines agree."""

_BROADCAST = struct.Struct("<QI")  # seed, λ0


@dataclass(frozen=True)
class FedPMState:
    """The server's state: ones among total masks since the last reset (total 0: the seed's initial θ)."""

    round: int
    ones: npt.NDArray[np.uint32]
    total: int
    stats: Vector


@dataclass(frozen=True)
class FedPM:
    """FedPM with Bayesian aggregation; ``reset_every=1`` with ``lam0=1`` is the plain mean of Section 3.1.2."""

    masked: MaskedNetwork
    seed: int
    local: Local
    lam0: int = 1
    reset_every: int = 1
    modes: tuple[str, ...] = ("sampled", "thresholded", "expected")
    final_modes: tuple[str, ...] = ("sampled", "thresholded")

    def init(self) -> FedPMState:
        """Return the state before the first round: nothing but what the seed implies."""
        return FedPMState(0, np.zeros(self.masked.size, np.uint32), 0, self.masked.initial_stats())

    def broadcast(self, state: FedPMState) -> bytes:
        """Return seed and, once there are any, the coded counts; never floats, except norm statistics."""
        body = _BROADCAST.pack(self.seed, self.lam0)
        if state.total:
            body += encode_counts(state.ones, state.total) + state.stats.astype("<f4").tobytes()
        fingerprint = self.masked.fingerprint(self.seed)
        return Message(Kind.BROADCAST, fingerprint, state.round + 1, SERVER, body).to_bytes()

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams) -> ClientResult:
        """Train a probability mask from the server's, and send one sample of it (Section 3.1.1)."""
        seed, theta, stats = self._read(broadcast, rng.round)
        theta, stats, loss = train_scores(
            self.masked,
            self.masked.weights(seed),
            theta.clip(CLAMP, 1 - CLAMP),
            stats,
            shard,
            rng,
            self.local,
        )
        mask = sample_mask(theta, rng.uint32("upload", len(theta)))
        body = encode_frequency(mask) + stats.astype("<f4").tobytes()
        message = Message(Kind.UPLOAD, self.masked.fingerprint(seed), rng.round, rng.client, body)
        metrics = {"train_loss": loss, "frequency_entropy_bpp": entropy(float(mask.mean(dtype=np.float64)))}
        return ClientResult(message.to_bytes(), metrics)

    def _read(self, broadcast: bytes, round: int) -> tuple[int, Vector, Vector]:
        """Return seed, θ and norm statistics of a broadcast."""
        message = Message.from_bytes(broadcast)
        if len(message.body) < _BROADCAST.size:
            raise WireError(f"broadcast body of {len(message.body)} bytes: too short to hold a seed; it was cut")
        seed, lam0 = _BROADCAST.unpack_from(message.body)
        message.expect(Kind.BROADCAST, self.masked.fingerprint(seed), round, SERVER)
        coded = message.body[_BROADCAST.size :]
        if not coded:
            return seed, initial(seed, self.masked.size).mode(), self.masked.initial_stats()
        coded, stats = self._split_stats(coded)
        return seed, Posterior(*decode_counts(coded, self.masked.size), lam0).mode(), stats

    # -- on the server ------------------------------------------------------------------------------------

    def decode(self, state: FedPMState, client: int, payload: bytes) -> tuple[Mask, Vector]:
        """Return a client's mask and norm statistics."""
        message = Message.from_bytes(payload)
        message.expect(Kind.UPLOAD, self.masked.fingerprint(self.seed), state.round + 1, client)
        coded, stats = self._split_stats(message.body)
        return decode_frequency(coded, self.masked.size), stats

    def aggregate(self, state: FedPMState, updates: Iterable[tuple[Mask, Vector]]) -> FedPMState:
        """Update the posterior with the clients' masks (Algorithm 2), one at a time."""
        ones = np.zeros(self.masked.size, np.uint32)
        stats = np.zeros(self.masked.stats_size, np.float64)
        masks = 0
        for mask, client_stats in updates:
            ones += mask
            stats += client_stats
            masks += 1
        if masks == 0:  # nobody answered: the belief stays
            return replace(state, round=state.round + 1)
        reset = state.total == 0 or reset_due(state.round + 1, self.reset_every)
        posterior = Posterior(state.ones, state.total, self.lam0).updated(ones, masks, reset=reset)
        return FedPMState(state.round + 1, posterior.ones, posterior.total, (stats / masks).astype(np.float32))

    def _split_stats(self, body: bytes) -> tuple[bytes, Vector]:
        """Split a body into its coded part and the float32 norm statistics at its end."""
        cut = len(body) - 4 * self.masked.stats_size
        if cut < 0:
            raise WireError(f"body of {len(body)} bytes: too short for {self.masked.stats_size} norm statistics")
        stats = np.frombuffer(body[cut:], "<f4").astype(np.float32)
        if not np.isfinite(stats).all():
            raise WireError("norm statistics hold NaN or infinite values: the sender's training diverged")
        return body[:cut], stats

    # -- the global model ---------------------------------------------------------------------------------

    def posterior(self, state: FedPMState) -> Posterior:
        """Return the server's belief."""
        if state.total == 0:
            return initial(self.seed, self.masked.size)
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


def initial(seed: int, size: int) -> Posterior:
    """Return the initial θ of a seed in the form of a posterior."""
    return Posterior(INITIAL_LEVELS[Streams(seed).uint8("initial scores", size)], INITIAL_TOTAL)


def sample_mask(theta: Vector, uniform: npt.NDArray[np.uint32]) -> Mask:
    """Return m = 1[u < θ] for uniform 32-bit integers u: a sample of Bern(θ), exact to 2⁻³²."""
    return (uniform < (theta * np.float32(2**32)).astype(np.uint64)).astype(np.uint8)
