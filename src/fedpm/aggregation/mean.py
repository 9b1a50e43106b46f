"""The plain mean, summed one client at a time."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Folded
from fedpm.registry import AggregatorSpec, register


class Mean:
    """Every client counts the same, and memory does not grow with their number."""

    sums = True

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        """Return the sum of the vectors and their number."""
        total: npt.NDArray[Any] = np.zeros(size, dtype)
        count = 0
        for vector in vectors:
            total += vector
            count += 1
        return Folded(total, count)


register(
    AggregatorSpec(
        name="mean",
        label="mean",
        about="every client counts the same",
        build=lambda settings: Mean(),
    )
)
