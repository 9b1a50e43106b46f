"""The network that is scored and shipped: the mean of the last rounds (tail averaging), of which no client is told.

θ of a round, or its weights, has the noise of the samples and of the few steps that it was made of. A mean over some
rounds has less. Training goes on from the last round as it is. After t rounds the newest one counts 1/(share · t), so
the mean reaches back over about that share of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpm.methods.base import Arrays, per_round
from fedpm.wire.theta import Vector

RESTLESS = 0.25
"""The share where not all clients take part, so that one round is not like the other."""


def restless(settings: Mapping[str, Any]) -> float:
    """Return the share that suits every method; clients that score a network know the last round alone."""
    measured = settings["model.weights"] == "random" and settings["evaluation.at"] == "server"
    return RESTLESS if measured and per_round(settings) < settings["clients.total"] else 0.0


@dataclass(frozen=True)
class Average:
    """A mean of θ or of weights, and of the norm layers' statistics."""

    values: Vector
    stats: Vector

    def to_arrays(self) -> Arrays:
        """Return it for a checkpoint."""
        return {"average": self.values, "average_stats": self.stats}


def averaged(before: Average | None, values: Vector, stats: Vector, *, share: float, round: int) -> Average | None:
    """Return the mean after a round; None with a share of 0, for which nothing need be held."""
    if not share:
        return None
    newest = np.float32(min(1.0, 1 / (share * round)))
    if before is None or newest == 1:
        return Average(values, stats)
    with np.errstate(over="ignore", invalid="ignore"):  # weights that diverged
        moved, shifted = newest * (values - before.values), newest * (stats - before.stats)
        return Average(before.values + moved, before.stats + shifted)


def read_average(arrays: Arrays) -> Average | None:
    """Return the mean of a checkpoint, None if it has none."""
    return Average(arrays["average"], arrays["average_stats"]) if "average" in arrays else None
