"""The server's belief about every parameter: a Beta posterior in exact integers (Section 3.2, Algorithm 2)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Posterior:
    """Beta(α, β) with α = λ0 + ones and β = λ0 + total − ones, for each parameter."""

    ones: Counts
    total: int
    lam0: int = 1

    def updated(self, ones: Counts, masks: int, *, reset: bool) -> "Posterior":
        """Return the posterior after ``masks`` more masks with so many ones (eq. 3), from the prior if reset."""
        if reset:
            return Posterior(ones, masks, self.lam0)
        return Posterior(self.ones + ones, self.total + masks, self.lam0)

    @property
    def numerator(self) -> Counts:
        """α − 1, an integer."""
        return self.ones + np.uint32(self.lam0 - 1)

    @property
    def denominator(self) -> int:
        """α + β − 2, the same for all parameters."""
        return self.total + 2 * (self.lam0 - 1)

    def mode(self) -> npt.NDArray[np.float32]:
        """Return θ = (α − 1)/(α + β − 2) (eq. 4); with λ0 = 1 that is ones/total, the plain mean."""
        theta: npt.NDArray[np.float32] = (self.numerator / np.float64(self.denominator)).astype(np.float32)
        return theta


def reset_due(round: int, every: int) -> bool:
    """Tell whether the prior is restored before the masks of a round (counted from 1) are added."""
    return (round - 1) % every == 0
