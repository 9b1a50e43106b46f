"""The server's belief about every parameter: a Beta posterior in exact integers (Section 3.2, Algorithm 2)."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedpm.errors import ConfigError
from fedpm.model.start import TOTAL, starting_theta
from fedpm.registry import Settings, setting
from fedpm.wire.theta import Counts, Theta

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

MAX_TOTAL = 2**16
"""The most masks a posterior may be of; bounds what a decoder allocates."""
UNIT = 4
"""Of earlier counts so many quarters can be kept when masks arrive; if not all, a new mask counts for so many."""


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
    def initial(cls, network: "MaskedNetwork", seed: int) -> "Posterior":
        """Return the θ that a seed implies before any training, in the form of a posterior."""
        return cls(starting_theta(network, seed), TOTAL, learned=False)

    def updated(self, ones: Counts, masks: int, *, lam0: int, reset: bool, kept: int = UNIT) -> "Posterior":
        """Return the posterior after ``masks`` more masks with so many ones (eq. 3), from the prior if reset.

        Of what was counted before, ``kept`` quarters remain, rounded down: newer masks then tell more than older ones.
        """
        new = np.uint32(_weight(kept)) * ones
        old = np.uint32(0) if reset or not self.learned else self._kept(kept)
        return Posterior(old + new, self.total_after(masks, reset=reset, kept=kept), lam0)

    def total_after(self, masks: int, *, reset: bool, kept: int = UNIT) -> int:
        """Return the total of ``updated``."""
        return (0 if reset or not self.learned else self.total * kept // UNIT) + _weight(kept) * masks

    def added(self, after: "Posterior", masks: int, *, kept: int = UNIT) -> Counts:
        """Return the ones of the masks that led from this posterior to the one ``after``."""
        reset = after.total == self.total_after(masks, reset=True, kept=kept)
        new: Counts = after.ones if reset else after.ones - self._kept(kept)
        return new // np.uint32(_weight(kept))

    def _kept(self, kept: int) -> Counts:
        return self.ones * np.uint32(kept) // np.uint32(UNIT) if kept < UNIT else self.ones

    @cached_property
    def theta(self) -> Theta:
        """The mode (α − 1)/(α + β − 2) (eq. 4); with λ0 = 1 it is ones/total, the plain mean."""
        return Theta(self.ones + np.uint32(self.lam0 - 1), self.total + 2 * (self.lam0 - 1))


def _weight(kept: int) -> int:
    return 1 if kept == UNIT else UNIT


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
    discount: Literal["auto"] | Annotated[float, Field(ge=0, lt=1, multiple_of=1 / UNIT)] = setting(
        "auto",
        "what is kept of earlier masks when a round ends, in place of resets: 0.25, 0.5 or 0.75; 0: no discount, "
        "counts are kept until the next reset (reset_every); auto: FedPM 0.5 where not all clients take part",
    )
    relay: bool | Literal["auto"] = setting(
        "auto",
        "let broadcasts pass the last uploads on where that is shorter: clients see one another's; auto: true, unless "
        "the coder hides them",
    )

    @model_validator(mode="after")
    def _resets(self) -> Self:
        if isinstance(self.reset_every, int) and self.reset_every < 1:
            raise ValueError(f"aggregation.reset_every = {self.reset_every} should be 'auto' or at least 1")
        return self


def kept_quarters(discount: float, per_round: int) -> int:
    """Return how many quarters of earlier counts are kept: all, unless they are discounted."""
    kept = round(UNIT * discount) or UNIT
    if kept < UNIT and per_round * UNIT * UNIT > MAX_TOTAL * (UNIT - kept):
        raise ConfigError(
            f"aggregation.discount = {discount} with {per_round} clients a round: a posterior should be of at most "
            f"{MAX_TOTAL} counts; sample fewer clients, or set aggregation.discount = 0"
        )
    return kept


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
