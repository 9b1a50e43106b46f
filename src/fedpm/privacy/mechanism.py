"""What a client may do to a probability mask before it lets go of a sample (Appendix C), and what the server can undo.

θ in [c, 1−c]^d, plus Gaussian noise, clipped to [c, 1−c], sampled: m ~ Bern(clip(θ + η)). Logarithms are natural.
"""

import math

import numpy as np
import numpy.typing as npt

from fedpm.errors import ConfigError
from fedpm.rng import Streams

Array = npt.NDArray[np.float64]


def sensitivity(d: int, c: float) -> float:
    """Return the ℓ2 distance of the two masks of [c, 1−c]^d that differ most, (1−2c)√d."""
    return (1 - 2 * c) * math.sqrt(d)


def classical_sigma(epsilon: float, delta: float, delta_2: float) -> float:
    """Return the paper's noise, σ² = 2 ln(1.25/δ) Δ²/ε², which is proven for ε < 1 only."""
    return math.sqrt(2 * math.log(1.25 / delta)) * delta_2 / epsilon


def renyi_binary(alpha: float, p: float) -> float:
    """Return r_α(p): the Rényi divergence of Bern(p) from Bern(1−p), either way."""
    return renyi_bernoulli(alpha, p, 1 - p)


def renyi_bernoulli(alpha: float, p: float, q: float) -> float:
    """Return the Rényi divergence of order α > 1 of Bern(p) from Bern(q), for p and q inside (0, 1)."""
    ones = alpha * math.log(p) + (1 - alpha) * math.log(q)
    zeros = alpha * math.log1p(-p) + (1 - alpha) * math.log1p(-q)
    return float(np.logaddexp(ones, zeros)) / (alpha - 1)


def pure_epsilon(d: int, c: float) -> float:
    """Return what a sample of Bern(θ) costs without any noise and without any δ: d ln((1−c)/c)."""
    return d * math.log((1 - c) / c)


def score_rho(distance: float) -> float:
    """Return ρ of the zCDP that a sample of Bern(sigmoid(s)) has when s can move by ``distance`` in ℓ2.

    For every order, D_α ≤ α · distance²/8, however many coordinates there are (docs/privacy.md has the proof).
    """
    return distance**2 / 8


def clipped_mean(theta: npt.ArrayLike, c: float, sigma: float) -> Array:
    """Return E[clip(θ + η)] for η ~ N(0, σ²), which is the chance of a one.

    The last line of the paper's derivation is wrong; this is the line before it.
    """
    from scipy.special import ndtr  # a slow import, which few runs need

    theta = np.asarray(theta, np.float64)
    low, high = (c - theta) / sigma, (1 - c - theta) / sigma
    below, inside = ndtr(low), ndtr(high) - ndtr(low)
    density = (np.exp(-(low**2) / 2) - np.exp(-(high**2) / 2)) / math.sqrt(2 * math.pi)
    return np.asarray(c * below + theta * inside + sigma * density + (1 - c) * ndtr(-high))


def release(theta: Array, c: float, sigma: float, rng: Streams) -> npt.NDArray[np.bool_]:
    """Return a sample of Bern(clip(θ + η)) for θ of any shape; σ = 0 adds no noise."""
    if not (0 < c < 0.5):
        raise ConfigError(f"c = {c} should be between 0 and 0.5: probabilities are kept in [c, 1 − c]")
    noise = rng.normal("mean estimation noise", theta.size).reshape(theta.shape)
    kept = np.clip(theta + sigma * noise, c, 1 - c)
    return rng.fractions("mean estimation sample", theta.size).reshape(theta.shape) < kept


def correct_by_table(mean: Array, c: float, sigma: float, points: int) -> Array:
    """Return θ whose clipped mean is nearest to ``mean``, among ``points`` values of [c, 1−c] (the paper's table)."""
    grid = np.linspace(c, 1 - c, points)
    table = clipped_mean(grid, c, sigma)
    right = np.searchsorted(table, mean).clip(1, points - 1)
    nearer = right - (mean - table[right - 1] < table[right] - mean)
    return np.asarray(grid[nearer])


def correct_exactly(mean: Array, c: float, sigma: float) -> Array:
    """Return θ in [c, 1−c] whose clipped mean is ``mean``, or the end that comes nearest."""
    low, high = np.full_like(mean, c), np.full_like(mean, 1 - c)
    for _ in range(52):  # the clipped mean rises with θ: halve to the precision of a float
        middle = (low + high) / 2
        small = clipped_mean(middle, c, sigma) < mean
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    return np.asarray((low + high) / 2)
