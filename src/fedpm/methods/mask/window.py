"""The server's last broadcasts, which bring clients up to date that missed a few rounds."""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from fedpm.methods.base import Broadcast
from fedpm.methods.mask.downlink import MAX_STEPS, pack, unpack


@dataclass(frozen=True)
class Window:
    """The full broadcasts of the next round and of the one ``before``, and brief ones that lead to the next round's.

    The last brief one builds on ``before``, each other one on what the one ahead of it leads to. They are kept for as
    long as they are together shorter than the full one. ``holders`` has each client that holds a broadcast on which
    one of them builds, with its round.
    """

    full: Broadcast
    before: bytes = b""
    steps: tuple[Broadcast, ...] = ()
    holders: dict[int, int] = field(default_factory=dict)

    def then(self, full: Broadcast, brief: Broadcast, clients: list[int], round: int) -> "Window":
        """Return the window after a round, which these clients answered."""
        steps = (*self.steps, brief)
        lengths = list(accumulate(len(step.payload) for step in reversed(steps)))[:MAX_STEPS]
        oldest = len(steps) - sum(length < len(full.payload) for length in lengths)
        held = {**self.holders, **dict.fromkeys(clients, round)}
        recent = {client: last for client, last in held.items() if last > round - len(steps) + oldest}
        return Window(full, self.full.payload, steps[oldest:], recent)

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all of it as an array, for a checkpoint."""
        ideal = np.array([step.ideal_bits for step in (self.full, *self.steps)], "<f8")
        holders = np.array(list(self.holders.items()), "<i8")
        payloads = [self.full.payload, self.before, *(step.payload for step in self.steps)]
        return np.frombuffer(pack([ideal.tobytes(), holders.tobytes(), *payloads]), np.uint8)

    @classmethod
    def of(cls, array: npt.NDArray[np.uint8]) -> "Window":
        """Return the window of which this is the array."""
        ideal, holders, full, before, *steps = unpack(array.tobytes(), 4 + MAX_STEPS)
        bits = np.frombuffer(ideal, "<f8").tolist()
        held = np.frombuffer(holders, "<i8").reshape(-1, 2).tolist()
        return cls(Broadcast(full, bits[0]), before, tuple(map(Broadcast, steps, bits[1:])), dict(held))
