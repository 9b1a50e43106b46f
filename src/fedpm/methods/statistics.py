"""Norm statistics of clients: what no training gives is refused, and the median of the others counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

LARGEST = 1e6
"""A running mean or variance is below this."""


def check_statistics(network: MaskedNetwork, stats: Vector) -> None:
    """Raise WireError for statistics that no training gives."""
    sizes = [math.prod(shape) for shape in network.stats.values()]
    variances = np.repeat([name.endswith("running_var") for name in network.stats], sizes).astype(np.bool_)
    least, largest = float(stats[variances].min(initial=0.0)), float(np.abs(stats).max(initial=0.0))
    if least < 0 or largest >= LARGEST:
        raise WireError(
            f"norm statistics hold a variance of {least:g} or a value of {largest:g}: should be at least 0 and below "
            f"{LARGEST:g}; the sender's training diverged, or it lies"
        )


class NormStatistics:
    """Those of a round's clients, of which the median counts: a few liars cannot move it far."""

    def __init__(self) -> None:
        self._rows: list[Vector] = []

    def add(self, stats: Vector) -> None:
        """Take in those of one client."""
        if len(stats):
            self._rows.append(stats)

    def median(self) -> Vector:
        """Return the median of each number; the mean of the two in the middle where there are two."""
        if not self._rows:
            return np.zeros(0, np.float32)
        return np.median(np.stack(self._rows), axis=0).astype(np.float32)
