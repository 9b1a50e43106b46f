"""What passes between server and clients in a round, and how much of it can be used."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fedpm.engines.base import Fault
from fedpm.errors import EngineError, WireError
from fedpm.experiment.folder import Record
from fedpm.methods.base import Algorithm, ClientResult


@dataclass
class Exchange:
    """What passed between server and clients in a round."""

    clients: list[int]
    downlink_bytes: int
    downlink_ideal_bits: float = 0.0
    uplink_bytes: int = 0
    metrics: dict[str, list[float]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    quorum: int = 0

    def accepted(
        self, algorithm: Algorithm[Any, Any], state: Any, replies: Iterator[tuple[int, ClientResult | Fault]]
    ) -> Iterator[Any]:
        """Yield the decoded replies one at a time; what is none is counted and left out, down to the quorum."""
        answers = 0
        for client, reply in replies:
            self.downlink_bytes += reply.resent
            try:
                update = self._update(algorithm, state, client, reply)
            except WireError as error:
                said = self.rejected.get(str(client))
                self.rejected[str(client)] = f"{said}; {error}" if said else str(error)
                self.faults[error.kind] += 1
                continue
            answers += 1
            yield update
        if answers < self.quorum:
            raise EngineError(
                f"round {state.round + 1}: {answers} of {len(self.clients)} clients gave an answer that can be used, "
                f"fewer than the quorum of {self.quorum} (flower.quorum): {self.rejected}; continue when they are well"
            )

    def _update(self, algorithm: Algorithm[Any, Any], state: Any, client: int, reply: ClientResult | Fault) -> Any:
        if isinstance(reply, Fault):
            raise WireError(reply.reason, reply.kind)
        self.uplink_bytes += len(reply.payload)
        for name, value in reply.metrics.items():
            self.metrics.setdefault(name, []).append(value)
        return algorithm.decode(state, client, reply.payload)

    def figures(self, size: int) -> Record:
        """Return the traffic in bytes over all clients and in bits per parameter and client, and mean metrics."""
        bpp = 8 / (size * len(self.clients))
        return {
            **{name: finite(sum(values) / len(values)) for name, values in self.metrics.items()},
            "clients": self.clients,
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "uplink_bpp": self.uplink_bytes * bpp,
            "downlink_bpp": self.downlink_bytes * bpp,
            "downlink_ideal_bpp": self.downlink_ideal_bits * bpp / 8,
            "rejected": self.rejected,
            "faults": dict(self.faults),
        }


def finite(value: float) -> float | None:
    """Return a float that JSON can hold: a diverged loss becomes null."""
    return value if math.isfinite(value) else None
