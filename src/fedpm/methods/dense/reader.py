"""How a client reads a broadcast of weights, also one that tells what was added to the weights that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.dense.state import MAX_STEPS
from fedpm.methods.dense.weights import DIVERGED, STEP, Told, WeightForm, opened, read_weights
from fedpm.methods.relay import split
from fedpm.wire.message import Message
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

Step = Callable[[Vector, int, bytes], Vector]
"""Returns the weights after a coded step of a round, given those before it."""
_KEPT = 2  # what a reader keeps: simulated clients of one process all read the same
BRIEF = (WeightForm.RELAYED, WeightForm.QUANTISED)
"""The forms of a step, which builds on an earlier broadcast."""


class WeightReader:
    """Reads broadcasts for one network and seed; ``step`` takes steps of ``form``, if its server sends any.

    With ``both`` it also keeps the weights before the last step.
    """

    def __init__(
        self, network: MaskedNetwork, seed: int, form: WeightForm | None, step: Step, *, both: bool = False
    ) -> None:
        self._network, self._seed, self._form, self._step, self._both = network, seed, form, step, both
        self._recent: dict[tuple[bytes, int, bytes], Told] = {}

    def __getstate__(self) -> dict[str, object]:
        """Leave what was read behind on the way to another process."""
        return {**self.__dict__, "_recent": {}}

    def read(self, broadcast: bytes, round: int, memory: bytes = b"") -> Told:
        """Read a broadcast; ``memory`` is an earlier one, in a form that needs no past, if the client holds any.

        The arrays must not be changed: they may be given to several clients.
        """
        message = Message.from_bytes(broadcast)
        if message.form not in (*BRIEF, WeightForm.STEPS):
            return read_weights(message, self._network, round, self._seed)
        key = broadcast, round, memory
        told = self._recent.pop(key, None) or self._stepped(message, round, memory)
        while len(self._recent) >= _KEPT:
            del self._recent[next(iter(self._recent))]
        self._recent[key] = told
        return told

    def _stepped(self, message: Message, round: int, memory: bytes) -> Told:
        form, data = message.form, opened(message, self._network, round, self._seed)
        steps = [data]
        if form == WeightForm.STEPS:
            form, steps = data[0] if data else 0, split(data[STEP.size :], MAX_STEPS)
        if form != self._form or not steps:
            raise WireError(f"broadcast of {len(steps)} steps of form {form}: of another method, or damaged")
        held, weights = self._held(memory, round - len(steps), round)
        before = weights
        for number, step in list(enumerate(steps, round - len(steps)))[held - round :]:
            before, weights = weights, self._step(weights, number, step)
        if not np.isfinite(weights).all():
            raise WireError(DIVERGED)
        return Told(self._seed, weights, message.stats, before if self._both else None)

    def _held(self, memory: bytes, first: int, round: int) -> tuple[int, Vector]:
        """Return the round of what a client remembers, or of the seed, and its weights, if steps from ``first`` fit."""
        held = Message.from_bytes(memory).round if memory else 1
        if not max(1, first) <= held < round:
            holds = f"; it holds that of round {held}" if memory else ""
            raise WireError(
                f"broadcast builds on that of round {first}, which this client does not hold{holds}", "lacks"
            )
        return held, self.read(memory, held).weights if memory else self._network.dense_weights(self._seed)
