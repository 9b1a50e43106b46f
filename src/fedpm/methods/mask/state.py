"""What the server of a mask method holds between rounds, and notes while one ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Aggregator, Folded, Screen
from fedpm.aggregation.posterior import UNIT, Posterior, reset_due
from fedpm.methods.averaging import Average, read_average
from fedpm.methods.base import Arrays
from fedpm.methods.mask.downlink import Content, DownlinkWriter
from fedpm.methods.mask.history import History
from fedpm.methods.relay import relay
from fedpm.methods.statistics import Floats
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Counts, Theta, Vector

if TYPE_CHECKING:
    import torch

    from fedpm.data.datasets import Shard
    from fedpm.model.masking import MaskedNetwork
    from fedpm.rng import Streams
    from fedpm.training.local import Local, Trained


class MaskTrainer(Protocol):
    """Trains a client's probability mask."""

    @property
    def local(self) -> Local:
        """How a client trains."""

    def train(self, theta: Vector, *, frozen: torch.Tensor, stats: Vector, shard: Shard, rng: Streams) -> Trained:
        """Return θ_k after training on a client's examples, starting from θ strictly inside (0, 1)."""


HELD = 2**26
"""Bytes of uploads that wait in memory for a rule that looks at all of them; more wait in a temporary file."""


@dataclass(frozen=True)
class MaskState:
    """The server's state; ``updated`` is the last round that brought masks, 0 if none did.

    ``rejected`` says whose uploads the rule left out of the last round, and why; ``average`` is the mean of the last
    rounds, if there is one.
    """

    round: int
    posterior: Posterior
    stats: Vector
    updated: int
    history: History
    rejected: Mapping[int, str] = field(default_factory=dict)
    average: Average | None = None

    @property
    def scored(self) -> Average:
        """θ and statistics of the network that is scored and shipped."""
        return self.average or Average(self.posterior.theta.floats(), self.stats)

    @property
    def start(self) -> Theta:
        """θ from which the clients of the next round start."""
        return self.history.content.start

    def learned(self, ones: Counts, masks: int, lam0: int, reset_every: int, kept: int) -> Posterior:
        """Return the posterior after a round that brought so many masks (Algorithm 2)."""
        reset = kept == UNIT and reset_due(self.round + 1, self.updated, reset_every)
        return self.posterior.updated(ones, masks, lam0=lam0, reset=reset, kept=kept)

    def to_arrays(self) -> Arrays:
        """Return it for a checkpoint."""
        numbers = np.array([self.round, self.updated, self.posterior.total, self.posterior.learned])
        average = self.average.to_arrays() if self.average else {}
        arrays = {"mask_state": numbers, "ones": self.posterior.ones, "stats": self.stats, **average}
        return {**arrays, **self.history.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Arrays, writer: DownlinkWriter, seed: int, lam0: int) -> MaskState:
        """Return the state of a checkpoint of the run with this seed and prior."""
        round, updated, total, learned = arrays["mask_state"].tolist()
        posterior, stats = Posterior(arrays["ones"], total, lam0 if learned else 1, bool(learned)), arrays["stats"]
        history = History.from_arrays(arrays, writer, Content(seed, round + 1, posterior, stats))
        return cls(round, posterior, stats, updated, history, average=read_average(arrays))


@dataclass(frozen=True)
class MaskUpdate:
    """A decoded upload, and the mask as it was coded."""

    client: int
    mask: Mask
    stats: Vector
    coded: bytes = b""

    def __reduce__(self) -> tuple[Callable[..., MaskUpdate], tuple[object, ...]]:
        """Travel between processes with a bit a parameter."""
        return _unpacked, (self.client, np.packbits(self.mask), len(self.mask), self.stats, self.coded)


def _unpacked(client: int, packed: npt.NDArray[np.uint8], size: int, stats: Vector, coded: bytes) -> MaskUpdate:
    return MaskUpdate(client, np.unpackbits(packed, count=size), stats, coded)


class Arrivals:
    """What is noted of the updates of a round while a rule folds their masks."""

    def __init__(self, network: MaskedNetwork, rule: Aggregator, *, relay: bool) -> None:
        self._rule = rule
        self._size = network.size
        self._most = network.size // 2  # bounds what the server keeps: more is not worth passing on
        self.clients: list[int] = []
        self.stats = Floats(network)
        self.uploads: bytes | None = b"" if relay and rule.sums else None
        self.rejected: dict[int, str] = {}

    def fold(self, updates: Iterable[MaskUpdate], theta: Theta) -> Folded:
        """Fold the masks that the rule does not leave out; ``theta`` is where clients started."""
        if not isinstance(self._rule, Screen):
            return self._rule.fold(self._masks(updates), self._size, np.uint32)
        with SpooledTemporaryFile(HELD) as held:

            def passing() -> Iterator[Mask]:
                for update in updates:
                    coded = np.frombuffer(update.coded, np.uint8)
                    for array in (np.array(update.client), np.packbits(update.mask), update.stats, coded):
                        np.save(held, array, allow_pickle=False)
                    yield update.mask

            reasons = self._rule.screen(passing(), theta)
            held.seek(0)
            return self._rule.fold(self._masks(self._kept(held, reasons)), self._size, np.uint32)

    def _kept(self, held: IO[bytes], reasons: list[str]) -> Iterator[MaskUpdate]:
        """Yield the updates that wait in a file, but for those with a reason to leave them out."""
        for reason in reasons:
            client, packed, stats, coded = (np.load(held, allow_pickle=False) for _ in range(4))
            if reason:
                self.rejected[int(client)] = reason
            else:
                yield MaskUpdate(int(client), np.unpackbits(packed, count=self._size), stats, coded.tobytes())

    def _masks(self, updates: Iterable[MaskUpdate]) -> Iterator[Mask]:
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
