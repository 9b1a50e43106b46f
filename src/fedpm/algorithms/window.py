"""The server's last broadcasts, which bring clients up to date that missed a few rounds."""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from fedpm.algorithms.base import Broadcast
from fedpm.algorithms.downlink import MAX_STEPS, pack, unpack


@dataclass(frozen=True)
class Window:
    """The full broadcast of the next round, those of rounds ``past``, and brief ones that lead from each to the next.

    A round is kept for as long as all brief ones since then are shorter than the full one. ``holders`` has each client
    that holds a broadcast of the past, with its round.
    """

    full: Broadcast
    past: tuple[bytes, ...] = ()
    steps: tuple[Broadcast, ...] = ()
    holders: dict[int, int] = field(default_factory=dict)

    def then(self, full: Broadcast, brief: Broadcast, clients: list[int], round: int) -> "Window":
        """Return the window after a round, which these clients answered."""
        past, steps = (*self.past, self.full.payload), (*self.steps, brief)
        lengths = list(accumulate(len(step.payload) for step in reversed(steps)))[:MAX_STEPS]
        oldest = len(steps) - sum(length < len(full.payload) for length in lengths)
        held = {**self.holders, **dict.fromkeys(clients, round)}
        recent = {client: last for client, last in held.items() if last > round - len(steps) + oldest}
        return Window(full, past[oldest:], steps[oldest:], recent)

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all of it as an array, for a checkpoint."""
        ideal = np.array([step.ideal_bits for step in (self.full, *self.steps)], "<f8")
        holders = np.array(list(self.holders.items()), "<i8")
        payloads = [self.full.payload, *self.past, *(step.payload for step in self.steps)]
        return np.frombuffer(pack([ideal.tobytes(), holders.tobytes(), *payloads]), np.uint8)

    @classmethod
    def of(cls, array: npt.NDArray[np.uint8]) -> "Window":
        """Return the window of which this is the array."""
        ideal, holders, full, *payloads = unpack(array.tobytes(), 3 + 2 * MAX_STEPS)
        bits, half = np.frombuffer(ideal, "<f8").tolist(), len(payloads) // 2
        steps = tuple(map(Broadcast, payloads[half:], bits[1:]))
        held = np.frombuffer(holders, "<i8").reshape(-1, 2).tolist()
        return cls(Broadcast(full, bits[0]), tuple(payloads[:half]), steps, dict(held))
