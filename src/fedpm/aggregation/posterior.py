"""The server's belief about every parameter: a Beta posterior in exact integers (Section 3.2, Algorithm 2)."""

from dataclasses import dataclass
from functools import cached_property
from math import exp
from statistics import NormalDist
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from fedpm.errors import ConfigError
from fedpm.registry import Settings, setting
from fedpm.rng import Streams
from fedpm.wire.theta import Counts, Theta

MAX_TOTAL = 2**16
"""The most masks a posterior may be of; bounds what a decoder allocates."""
INITIAL_TOTAL = 2**16
INITIAL_LEVELS = np.array(
    [round(INITIAL_TOTAL / (1 + exp(-NormalDist().inv_cdf((i + 0.5) / 256)))) for i in range(256)], np.uint32
)
"""θ = sigmoid(s), s ~ N(0, 1), in 256 equally likely levels and in integers, so that all machines agree."""
HALF = np.repeat(np.array([0, INITIAL_TOTAL], np.uint32), 128)
"""θ of 0 or 1: a random half of the weights."""


@dataclass(frozen=True)
class Posterior:
    """Beta(α, β) with α = λ0 + ones and β = λ0 + total − ones, for each parameter.

    ``learned`` is False before any training, when ``ones`` are what the seed implies.
    """

    ones: Counts
    total: int
    lam0: int = 1
    learned: bool = True

    @classmethod
    def initial(cls, seed: int, size: int, init: str = "kaiming") -> "Posterior":
        """Return the θ that a seed implies before any training, in the form of a posterior."""
        levels = HALF if init == "half" else INITIAL_LEVELS
        return cls(levels[Streams(seed).uint8("initial scores", size)], INITIAL_TOTAL, learned=False)

    def updated(self, ones: Counts, masks: int, *, lam0: int, reset: bool) -> "Posterior":
        """Return the posterior after ``masks`` more masks with so many ones (eq. 3), from the prior if reset."""
        if reset or not self.learned:
            return Posterior(ones, masks, lam0)
        return Posterior(self.ones + ones, self.total + masks, lam0)

    @cached_property
    def theta(self) -> Theta:
        """The mode (α − 1)/(α + β − 2) (eq. 4); with λ0 = 1 it is ones/total, the plain mean."""
        return Theta(self.ones + np.uint32(self.lam0 - 1), self.total + 2 * (self.lam0 - 1))


def reset_due(round: int, last: int, every: int) -> bool:
    """Tell whether the prior is restored before the masks of a round are added.

    Resets fall on rounds 1, 1 + every, …; one that fell on a round without masks is made up for: ``last`` is the last
    round that had any, 0 if none.
    """
    return (round - 1) // every > (last - 1) // every


class AggregationSettings(Settings):
    """The Beta posterior on the server."""

    lam0: int = setting(1, "prior λ0 of both Beta parameters", gt=0, le=2**16)
    reset_every: Literal["auto"] | int = setting(
        "auto", "rounds between resets of the prior, γ; auto: round(N/K); 1: plain mean"
    )
    relay: bool = setting(
        True, "let broadcasts pass the last uploads on where that is shorter: clients see one another's"
    )

    @model_validator(mode="after")
    def _resets(self) -> Self:
        if isinstance(self.reset_every, int) and self.reset_every < 1:
            raise ValueError(f"aggregation.reset_every = {self.reset_every} should be 'auto' or at least 1")
        return self


def resets(every: int | str, clients: int, per_round: int) -> int:
    """Return γ; ``auto`` is the paper's rule of thumb N/K, as far as the posterior has room for so many masks."""
    if every == "auto":
        every = max(1, min(round(clients / per_round), MAX_TOTAL // per_round))
    if per_round * int(every) > MAX_TOTAL:
        raise ConfigError(
            f"clients.sampled × aggregation.reset_every = {per_round} × {every}: a posterior should be of at most "
            f"{MAX_TOTAL} masks; sample fewer clients, or reset more often"
        )
    return int(every)
