"""The mean of the masks that can be honest: who flips far more bits than the others is left out.

An honest upload is a sample of a θ_k that training moved a little from θ_g. Against θ_g it has Σ|m − θ_g| flips. If
nothing had been learned, θ_k = θ_g, these would be Σ2θ_g(1 − θ_g) in the mean, with variance Σθ_g(1 − θ_g)(1 − 2θ_g)².
What an upload has beyond that mean, its extra flips, measures how far its client went. How far that is nobody knows
beforehand, so the uploads of a round are compared with one another: by median and median deviation, which fewer than
half of the clients cannot move far.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpm.aggregation.mean import Mean
from fedpm.registry import AggregatorSpec, Settings, register, setting
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Theta

FEWEST = 4
"""Of fewer uploads nobody can say which is the outlier."""
_NORMAL = 1.4826  # standard deviations of a normal distribution in its median deviation


@dataclass(frozen=True)
class FlipFilter(Mean):
    """Leaves out who has more than ``factor`` times the median of extra flips, and ``deviations`` beyond it."""

    deviations: float = 6.0
    factor: float = 3.0
    needs_uploads = True
    masks_only = True

    def screen(self, masks: Iterable[Mask], theta: Theta) -> list[str]:
        """Return for each mask why it is left out, or nothing if it stays."""
        expected, variance = moments(theta)
        extra = np.array([flips(mask, theta) for mask in masks]) - expected
        if len(extra) < FEWEST:
            return [""] * len(extra)
        return self._judged(extra, variance, self.factor, "flips")

    def _judged(self, extra: npt.NDArray[np.float64], variance: float, factor: float, what: str) -> list[str]:
        """Return why those are left out that have far more of something than the median."""
        middle = float(np.median(extra))
        spread = _NORMAL * float(np.median(np.abs(extra - middle)))
        chance = float(np.sqrt(variance + max(middle, 0.0)))  # the variance of rare flips is their number
        limit = max(middle + self.deviations * max(spread, chance), factor * middle)
        found = f"beyond what θ predicts, where the median of the round is {middle:,.0f} and at most {limit:,.0f} are"
        words = f"{what} {found} taken for honest: it lies, or its data are unlike all others'"
        return [f"{value:,.0f} {words}" if value > limit else "" for value in extra.tolist()]


def flips(mask: Mask, theta: Theta) -> float:
    """Return Σ|m − θ|, of integers up to the last step: the same on every machine."""
    turned = np.int64(theta.denominator) - 2 * theta.numerator.astype(np.int64)
    return float(theta.numerator.sum(dtype=np.int64) + (mask * turned).sum()) / theta.denominator


def moments(theta: Theta) -> tuple[float, float]:
    """Return mean and variance of the flips of a mask that is a sample of θ itself."""
    p = theta.numerator / np.float64(theta.denominator)
    spread = p * (1 - p)
    return 2 * float(spread.sum()), float((spread * (1 - 2 * p) ** 2).sum())


class FlipFilterSettings(Settings):
    """The aggregator ``flip-filter``."""

    deviations: float = setting(
        6.0, "standard deviations beyond the median of a round at which an upload is left out", ge=3
    )
    factor: float = setting(3.0, "and its extra flips must also exceed this many times the median of the round", ge=1)


register(
    AggregatorSpec(
        name="flip-filter",
        label="flip filter",
        about="the mean without uploads that flip far more bits than the others",
        build=lambda settings: FlipFilter(settings.deviations, settings.factor),
        settings=FlipFilterSettings,
    )
)
