"""What an aggregator does: it folds the vectors that the clients of a round sent into one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta


@dataclass(frozen=True)
class Folded:
    """A sum over ``count`` clients, whose mean is total/count; of masks, how many of them had a one."""

    total: npt.NDArray[Any]
    count: int

    def mean(self) -> npt.NDArray[np.float64]:
        """Return total/count."""
        return self.total / np.float64(self.count)


class Aggregator(Protocol):
    """Folds masks of zeros and ones, in integers, or changes of weights, in float64."""

    @property
    def sums(self) -> bool:
        """Whether the fold of masks is their plain sum, so that a broadcast may pass the masks on instead of it."""

    def fold(self, vectors: Iterable[npt.NDArray[Any]], size: int, dtype: type[np.generic]) -> Folded:
        """Fold vectors of ``size`` numbers into one of type ``dtype``; of no vector, the count is 0."""


@runtime_checkable
class Screen(Protocol):
    """An aggregator of masks that looks at all uploads of a round before it folds those that stay."""

    def screen(self, masks: Iterable[Mask], theta: Theta) -> list[str]:
        """Return for each mask why it is left out, or nothing if it stays; ``theta`` is where clients started."""


def masks_only(rule: Aggregator) -> bool:
    """Return whether a rule folds masks and nothing else."""
    return getattr(rule, "masks_only", False) is True
