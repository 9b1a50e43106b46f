"""Trimmed votes: of every parameter, the highest and the lowest votes are left out.

Votes are zeros and ones, so what is left follows from their number: of c ones among K votes, b are trimmed at either
end, and min(max(c − b, 0), K − 2b) of K − 2b remain. Memory does not grow with K.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.base import Folded
from fedpm.aggregation.mean import Mean
from fedpm.registry import AggregatorSpec, Settings, register, setting


@dataclass(frozen=True)
class TrimmedVotes:
    """Trims ⌊share · K⌋ votes at either end; as long as liars are no more, none of them decides alone."""

    share: float = 0.2
    sums = False
    needs_uploads = True
    masks_only = True

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        """Return what is left of the votes."""
        return self.of_sum(Mean().fold(vectors, size, dtype))

    def of_sum(self, votes: Folded) -> Folded:
        """Return what is left of votes that were added up elsewhere."""
        trimmed = int(self.share * votes.count)
        left = votes.count - 2 * trimmed
        return Folded(votes.total.clip(trimmed, trimmed + left) - np.array(trimmed, votes.total.dtype), left)


class TrimmedVotesSettings(Settings):
    """The aggregator ``trimmed-votes``."""

    share: float = setting(0.2, "share of the votes that is trimmed at either end", ge=0, lt=0.5)


register(
    AggregatorSpec(
        name="trimmed-votes",
        label="trimmed votes",
        about="of each parameter, the mean without the highest and the lowest votes",
        build=lambda settings: TrimmedVotes(settings.share),
        settings=TrimmedVotesSettings,
    )
)
