"""What the server of a mask method holds between rounds, and notes while one ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpm.aggregation.posterior import Posterior
from fedpm.methods.mask.downlink import relay
from fedpm.methods.mask.history import History
from fedpm.methods.statistics import NormStatistics
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True)
class MaskState:
    """The server's state; ``updated`` is the last round that brought masks, 0 if none did."""

    round: int
    posterior: Posterior
    stats: Vector
    updated: int
    history: History


@dataclass(frozen=True)
class MaskUpdate:
    """A decoded upload, and the mask as it was coded."""

    client: int
    mask: Mask
    stats: Vector
    coded: bytes = b""


class Arrivals:
    """What is noted of the updates of a round while their masks are folded."""

    def __init__(self, network: MaskedNetwork, *, keep_uploads: bool) -> None:
        self._most = network.size // 2  # bounds what the server keeps: more is not worth passing on
        self.clients: list[int] = []
        self.stats = NormStatistics()
        self.uploads: bytes | None = b"" if keep_uploads else None

    def masks(self, updates: Iterable[MaskUpdate]) -> Iterator[Mask]:
        """Yield the masks."""
        for update in updates:
            self.clients.append(update.client)
            self.stats.add(update.stats)
            self._keep(update)
            yield update.mask

    def _keep(self, update: MaskUpdate) -> None:
        """Add an upload to those to pass on; None: they are not worth it, or not allowed."""
        if self.uploads is not None and update.coded:
            grown = self.uploads + relay(update.client, update.coded)
            self.uploads = grown if len(grown) <= self._most else None
        else:
            self.uploads = None
