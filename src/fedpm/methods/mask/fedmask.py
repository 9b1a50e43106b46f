"""FedMask (Li et al. 2021) as the paper adapts it: no pruning at first, masks by threshold instead of by chance.

The server half is FedPM's with a plain mean: masks come up, their counts go down. What differs is the client.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from fedpm.data.datasets import Shard
from fedpm.errors import WireError
from fedpm.methods.base import Broadcast, ClientResult
from fedpm.methods.mask.downlink import Downlink
from fedpm.methods.mask.fedpm import FedPM, FedPMState, Update
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.training.local import Local, train_scores
from fedpm.wire.coders.table import CODERS
from fedpm.wire.masks import Mask, entropy
from fedpm.wire.message import Kind, Message

FORMS = {"frequency": 4, "side-information": 5}
"""The coders that suit masks without chance in them, with their number on the wire: not those of sampled masks."""


@dataclass(frozen=True)
class FedMask:
    """Masks m = 1[sigmoid(s) > 0.5], in training and in the upload.

    Where clients agreed, θ is 0 or 1, and only its ``clamp`` leaves scores near enough to 0 for a mask to change again.
    """

    masked: MaskedNetwork
    seed: int
    local: Local
    codec: str = "side-information"
    clamp: float = 0.35
    modes: tuple[str, ...] = ("thresholded", "expected")
    final_modes: tuple[str, ...] = ("thresholded",)

    @cached_property
    def _server(self) -> FedPM:
        return FedPM(self.masked, self.seed, self.local, self.codec)

    # -- on the client ------------------------------------------------------------------------------------

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train scores under their own threshold, and send the mask that they end in."""
        downlink = Downlink(self.masked)
        received = downlink.read(broadcast, rng.round, memory)
        belief = received.belief_of(self.masked).belief
        start = belief.theta().clip(self.clamp, 1 - self.clamp)
        weights = self.masked.weights(received.seed)
        theta, stats, loss = train_scores(
            self.masked, weights, start, received.stats, shard, rng, self.local, threshold=True
        )
        _, coder = CODERS[self.codec]
        known = downlink.known(belief, received.seed, rng.round, rng.client)
        certain = (theta > 0.5).astype(np.float32)  # a sample of Bern(0) or Bern(1) is no matter of chance
        mask, coded = coder.encode(certain, known, private=rng)
        fingerprint = self.masked.fingerprint(received.seed)
        message = Message(Kind.UPLOAD, FORMS[self.codec], fingerprint, rng.round, rng.client, coded.data, stats)
        metrics = {
            "train_loss": loss,
            "uplink_ideal_bpp": coded.ideal_bits / self.masked.size,
            "uplink_paper_bpp": entropy(float(mask.mean(dtype=np.float64))),
        }
        return ClientResult(message.to_bytes(), metrics)

    def remember(self, broadcast: bytes, round: int, memory: bytes = b"") -> bytes:
        """Return what a client keeps of a broadcast, to read brief ones later."""
        return self._server.remember(broadcast, round, memory)

    # -- on the server ------------------------------------------------------------------------------------

    def init(self) -> FedPMState:
        """Return the state before the first round: nothing but what the seed implies."""
        return self._server.init()

    def broadcast(self, state: FedPMState, *, since: int | None = None) -> Broadcast:
        """Return the mean of the last masks, as counts."""
        return self._server.broadcast(state, since=since)

    def holders(self, state: FedPMState) -> dict[int, int]:
        """Return the clients that hold a broadcast to build on, each with its round."""
        return self._server.holders(state)

    def memory(self, state: FedPMState) -> bytes:
        """Return what a client that holds the broadcast of the round before remembers of it."""
        return self._server.memory(state)

    def decode(self, state: FedPMState, client: int, payload: bytes) -> Update:
        """Return a client's mask and norm statistics."""
        message = Message.from_bytes(payload)
        fingerprint = self.masked.fingerprint(self.seed)
        message.expect(Kind.UPLOAD, fingerprint, state.round + 1, client, self.masked.stats_size)
        if message.form != FORMS[self.codec]:
            raise WireError(f"upload of form {message.form} instead of {FORMS[self.codec]}: of another method or coder")
        belief = self._server.posterior(state).belief
        known = Downlink(self.masked).known(belief, self.seed, state.round + 1, client)
        return Update(client, CODERS[self.codec][1].decode(message.coded, known), message.stats, message.coded)

    def aggregate(self, state: FedPMState, updates: Iterable[Update]) -> FedPMState:
        """Average the masks."""
        return self._server.aggregate(state, updates)

    # -- the global model ---------------------------------------------------------------------------------

    def mask(self, state: FedPMState, mode: str) -> Mask | Vector:
        """Return the global mask: 1[θ > 0.5], or θ itself (expected)."""
        return self._server.mask(state, mode)

    def network(self, state: FedPMState, mode: str) -> nn.Module:
        """Return the frozen network under the global mask."""
        return self._server.network(state, mode)
