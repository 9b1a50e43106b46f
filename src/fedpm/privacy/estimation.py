"""Distributed mean estimation (Appendix C): how far off a server's mean of private masks is, for every ε."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpm.errors import ConfigError
from fedpm.privacy.accounting import amplified_epsilon, analytic_sigma, mironov, release_epsilon
from fedpm.privacy.mechanism import (
    Array,
    classical_sigma,
    correct_by_table,
    correct_exactly,
    release,
    renyi_binary,
    sensitivity,
)
from fedpm.rng import Streams

PAPER_ORDER = 5
"""The order α at which the paper converts d·r_α(c) to (ε, δ)."""


@dataclass(frozen=True)
class Estimation:
    """The experiment: N clients with masks θ in [c, 1−c]^d.

    Args:
        clients: N.
        d: parameters of a mask.
        c: probabilities are kept in [c, 1−c].
        spread: how far clients are apart: with 1 every θ is uniform on [c, 1−c] by itself, with 0 all clients hold the
            same θ, in between so much of either. With 1 the mean is near 0.5, where clipping has no bias to correct.
        delta: δ (the paper's 1/N² unless given).
        points: Q, the size of the table for the correction.
        noise: ``"analytic"`` or the paper's ``"classical"``.
        repetitions: over which mean and standard deviation are taken.
        seed: names every draw.
    """

    clients: int = 100
    d: int = 5
    c: float = 0.2
    spread: float = 0.0
    delta: float | None = None
    points: int = 1000
    noise: str = "analytic"
    repetitions: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            "clients": (self.clients >= 2, "at least 2"),
            "d": (self.d >= 1, "at least 1"),
            "c": (0 < self.c < 0.5, "between 0 and 0.5: probabilities are kept in [c, 1 − c]"),
            "spread": (0 <= self.spread <= 1, "from 0 to 1"),
            "delta": (self.delta is None or 0 < self.delta < 1, "between 0 and 1"),
            "points": (self.points >= 2, "at least 2"),
            "noise": (self.noise in ("analytic", "classical"), "analytic or classical"),
            "repetitions": (self.repetitions >= 1, "at least 1"),
        }
        faults = [f"{key} = {getattr(self, key)!r} should be {what}" for key, (good, what) in rules.items() if not good]
        if faults:
            raise ConfigError("\n".join(faults))

    @property
    def target_delta(self) -> float:
        """The δ of every ε."""
        return self.clients**-2 if self.delta is None else self.delta

    def sigma(self, epsilon: float) -> float:
        """Return the noise that alone gives ε."""
        how = analytic_sigma if self.noise == "analytic" else classical_sigma
        return how(epsilon, self.target_delta, sensitivity(self.d, self.c))

    def curve(self, epsilons: Sequence[float]) -> list[dict[str, Any]]:
        """Return a row for each ε that the noise alone gives: the same release by other accounts, and the errors."""
        return [self._row(epsilon) for epsilon in epsilons]

    def _row(self, epsilon: float) -> dict[str, Any]:
        if epsilon <= 0:
            raise ConfigError(f"epsilon = {epsilon} should be greater than 0")
        sigma = self.sigma(epsilon)
        paper = mironov(self.d * renyi_binary(PAPER_ORDER, self.c), PAPER_ORDER, self.target_delta)
        accounts = {
            "epsilon": epsilon,
            "sigma": sigma,
            "epsilon_paper": min(epsilon, paper),
            "epsilon_amplified": amplified_epsilon(epsilon, self.d, self.c, self.target_delta),
            "epsilon_release": release_epsilon(self.d, self.c, sigma, self.target_delta),
        }
        found = np.array([self._errors(sigma, repetition) for repetition in range(self.repetitions)])
        means, deviations = found.mean(0), found.std(0)
        names = ("no_noise", "noise", "table", "exact")
        errors = {f"error_{name}": float(mean) for name, mean in zip(names, means, strict=True)}
        return {**accounts, **errors, **{f"std_{n}": float(s) for n, s in zip(names, deviations, strict=True)}}

    def _errors(self, sigma: float, repetition: int) -> tuple[float, ...]:
        """Return ‖estimate − mean‖² without noise, with noise, and corrected by table and exactly."""
        rng = Streams(self.seed, repetition)
        theta = self._masks(rng)
        truth = theta.mean(0)
        silent = release(theta, self.c, 0.0, rng).mean(0)
        noisy = release(theta, self.c, sigma, rng).mean(0)
        table = correct_by_table(noisy, self.c, sigma, self.points)
        exact = correct_exactly(noisy, self.c, sigma)
        return tuple(float(((estimate - truth) ** 2).sum()) for estimate in (silent, noisy, table, exact))

    def _masks(self, rng: Streams) -> Array:
        """Return the clients' θ."""
        own = rng.fractions("own masks", self.clients * self.d).reshape(self.clients, self.d)
        shared = rng.fractions("shared mask", self.d)
        return self.c + (1 - 2 * self.c) * (self.spread * own + (1 - self.spread) * shared)
