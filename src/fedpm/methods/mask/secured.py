"""FedPM whose masks are summed in secret (codec = "secure-sum"): the server learns their sum and how many there are.

Clients train and sample as ever. What leaves them is the mask under pads (``fedpm.secure``), and in the same sum what
they trained as floats, in fixed point. Of norm statistics the mean is taken, where open uploads allow the median.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.errors import ConfigError, EngineError, WireError
from fedpm.methods.base import DIVERGED, ClientResult
from fedpm.methods.mask.fedpm import FedPM
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.methods.mask.sums import MaskSum, SummedFedPM
from fedpm.methods.statistics import check_statistics, read_floats
from fedpm.secure.client import Client
from fedpm.secure.fixed import BITS, mean_of, to_fixed
from fedpm.secure.identity import Identity
from fedpm.secure.messages import Stage
from fedpm.secure.server import Server
from fedpm.secure.session import Session
from fedpm.secure.vectors import Part, sum_bits
from fedpm.wire.message import Message

if TYPE_CHECKING:
    from fedpm.data.datasets import Shard
    from fedpm.data.participation import Participation
    from fedpm.rng import Streams


@dataclass(frozen=True)
class Participant:
    """A client between two stages, with its packed mask and its floats in fixed point."""

    client: Client
    mask: bytes
    size: int
    floats: npt.NDArray[np.uint64]

    def answer(self, message: bytes) -> ClientResult:
        """Answer the server's next message of this round."""
        match self.client.due:
            case Stage.SHARES:
                return ClientResult(self.client.share(message), waiting=self)
            case Stage.MASKED:
                mask = np.unpackbits(np.frombuffer(self.mask, np.uint8), count=self.size)
                return ClientResult(self.client.mask(message, [mask, self.floats]), waiting=self)
            case _:
                return ClientResult(self.client.reveal(message))


class SecretSum:
    """The server's side of a round."""

    def __init__(self, method: FedPM, session: Session) -> None:
        self._method, self._server = method, Server(session)

    def receive(self, client: int, payload: bytes) -> None:
        """Take a client's message of this stage."""
        if not payload:
            raise WireError("it takes no part: its training diverged", "error")
        self._server.receive(client, payload)

    def advance(self) -> dict[int, bytes]:
        """Return the next message for each client that is still in."""
        return {} if self._server.stage is Stage.REVEAL else self._server.advance()

    def has(self, client: int) -> bool:
        """Tell whether a client's mask is in the sum."""
        return client in self._server.summed

    def update(self) -> MaskSum:
        """Return the sum; what no training gives spoils it, and nobody can say whose it was."""
        ones, floats = self._server.sum()
        clients = tuple(sorted(self._server.summed))
        if int(ones.max(initial=0)) > len(clients):
            raise EngineError(
                f"secure sum: {int(ones.max())} of {len(clients)} masks have a one somewhere: some client lied, and "
                "nobody can say which; continue without those that you do not trust"
            )
        stats = mean_of(floats, len(clients))
        try:
            check_statistics(self._method.network, stats)
        except WireError as error:
            raise EngineError(f"secure sum: the mean of the clients' {error}") from None
        return MaskSum(clients, ones.astype(np.uint32), stats)


@dataclass(frozen=True, kw_only=True)
class SecureFedPM(SummedFedPM):
    """FedPM on secure sums; everybody works out from the seed with whom."""

    participation: Participation
    identity: Identity | None = None

    def client_update(self, broadcast: bytes, shard: Shard, rng: Streams, memory: bytes = b"") -> ClientResult:
        """Train and sample, keep the mask, and send keys; nothing if training diverged."""
        trained = super().client_update(broadcast, shard, rng, memory)
        try:
            plain = Message.from_bytes(trained.payload)
            if plain.form == DIVERGED:
                return ClientResult(b"")
            floats = read_floats(self.network, plain, self.reader.read(broadcast, rng.round, memory).stats)
            check_statistics(self.network, floats)
        except WireError:
            return ClientResult(b"")
        key, signers = (self.identity.key, self.identity.signers) if self.identity else (None, None)
        client = Client(self.session(rng.round), rng.client, key, signers)
        waiting = Participant(client, plain.coded, self.network.size, to_fixed(floats))
        return ClientResult(client.advertise(), waiting=waiting)  # a metric would tell of one client

    def session(self, round: int) -> Session:
        """Return what all clients of a round agree on."""
        clients = tuple(self.participation.of(round))
        mask = Part(self.network.size, sum_bits(len(clients)))
        floats = Part(self.network.stats_size, sum_bits(len(clients), BITS))
        context = struct.pack("<QI", self.network.fingerprint(self.seed), round)
        return Session.of(context, clients, (mask, floats))

    def stages(self, state: MaskState) -> SecretSum:
        """Begin the round that the next broadcast starts."""
        return SecretSum(self, self.session(state.round + 1))

    def decode(self, state: MaskState, client: int, payload: bytes) -> MaskUpdate:
        """Refuse any upload: here the server is to see none."""
        raise WireError("upload instead of a message of a secure sum: the sender has other settings (codec)")


def secured(method: object, participation: Participation) -> SecureFedPM:
    """Return a mask method on secure sums, or raise ConfigError if it needs what they hide."""
    if not isinstance(method, FedPM):
        raise ConfigError("codec = 'secure-sum': only FedPM and what is built on it sums masks; use another coder")
    if not method.aggregator.sums or getattr(method.aggregator, "needs_uploads", False):
        raise ConfigError(
            "aggregator: it looks at single uploads, and with codec = 'secure-sum' the server has only their sum; "
            "use aggregator = 'mean', or another coder"
        )
    if participation.per_round < 2:
        raise ConfigError(
            f"clients.sampled = {participation.per_round}: a sum over one client is its mask; "
            "with codec = 'secure-sum' a round needs two or more"
        )
    given = {field.name: getattr(method, field.name) for field in fields(method)}
    return SecureFedPM(**{**given, "relay": False}, participation=participation)
