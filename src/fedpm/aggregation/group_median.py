"""The median of groups: clients are dealt into groups, and of every parameter the median of the groups' means counts.

A liar spoils its own group. Memory grows with the number of groups, not with that of clients.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Folded
from fedpm.registry import AggregatorSpec, Settings, register, setting
from fedpm.wire.theta import blocks


@dataclass(frozen=True)
class GroupMedian:
    """Deals uploads into groups in turn; the median is rounded to a count of all clients."""

    groups: int = 5
    sums = False
    needs_uploads = True
    masks_only = True

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        """Return the median of the groups' means."""
        totals: npt.NDArray[Any] = np.zeros((self.groups, size), dtype)
        count = 0
        for vector in vectors:
            totals[count % self.groups] += vector
            count += 1
        totals = totals[:count]  # a group without a client has no mean
        sizes = [-(-(count - group) // self.groups) for group in range(len(totals))]
        median = np.zeros(size, dtype)
        for part in blocks(size) if count else ():
            means = totals[:, part] / np.array(sizes)[:, None]
            median[part] = np.rint(np.median(means, axis=0) * count)
        return Folded(median, count)


class GroupMedianSettings(Settings):
    """The aggregator ``group-median``."""

    groups: int = setting(5, "groups of clients: more than twice as many as there may be liars", ge=3, le=64)


register(
    AggregatorSpec(
        name="group-median",
        label="median of groups",
        about="of each parameter, the median of the means of groups of clients",
        build=lambda settings: GroupMedian(settings.groups),
        settings=GroupMedianSettings,
    )
)
