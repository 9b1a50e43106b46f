"""The server's belief about every parameter: a Beta posterior in exact integers (Section 3.2, Algorithm 2)."""

from dataclasses import dataclass
from functools import cached_property
from math import exp
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.contexts import Belief, Counts

INITIAL_TOTAL = 2**16
INITIAL_LEVELS = np.array(
    [round(INITIAL_TOTAL / (1 + exp(-NormalDist().inv_cdf((i + 0.5) / 256)))) for i in range(256)], np.uint32
)
"""θ = sigmoid(s), s ~ N(0, 1), in 256 equally likely levels and in integers, so that all machines agree."""
HALF = np.repeat(np.array([0, INITIAL_TOTAL], np.uint32), 128)
"""θ of 0 or 1: a random half of the weights."""


@dataclass(frozen=True)
class Posterior:
    """Beta(α, β) with α = λ0 + ones and β = λ0 + total − ones, for each parameter."""

    ones: Counts
    total: int
    lam0: int = 1

    @classmethod
    def initial(cls, seed: int, size: int, init: str = "kaiming") -> "Posterior":
        """Return the θ that a seed implies before any training, in the form of a posterior."""
        levels = HALF if init == "half" else INITIAL_LEVELS
        return cls(levels[Streams(seed).uint8("initial scores", size)], INITIAL_TOTAL)

    def updated(self, ones: Counts, masks: int, *, reset: bool) -> "Posterior":
        """Return the posterior after ``masks`` more masks with so many ones (eq. 3), from the prior if reset."""
        if reset:
            return Posterior(ones, masks, self.lam0)
        return Posterior(self.ones + ones, self.total + masks, self.lam0)

    @cached_property
    def belief(self) -> Belief:
        """The mode (α − 1)/(α + β − 2) (eq. 4) as a fraction; with λ0 = 1 it is ones/total, the plain mean."""
        return Belief(self.ones + np.uint32(self.lam0 - 1), self.total + 2 * (self.lam0 - 1))

    def mode(self) -> npt.NDArray[np.float32]:
        """Return θ, the mode of the posterior."""
        return self.belief.theta()


def reset_due(round: int, every: int) -> bool:
    """Tell whether the prior is restored before the masks of a round (counted from 1) are added."""
    return (round - 1) % every == 0
