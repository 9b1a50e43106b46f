"""Lower bounds on the ε of a mechanism, from samples of its output for two neighbours."""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

Codes = npt.NDArray[np.int64]


def epsilon_at_least(one: Codes, other: Codes, epsilon: float, delta: float, confidence: float = 0.999) -> float:
    """Return an ε that the mechanism exceeds with the given confidence.

    Outputs are small integers. Half of the samples chooses the set of outputs that tells the two best, where the ratio
    of likelihoods is near or above e^ε; the other half, which the choice has not seen, measures its chance for both.
    """
    size = int(max(one.max(), other.max())) + 1
    half = len(one) // 2
    p, q = (np.bincount(codes[:half], minlength=size) / half for codes in (one, other))
    chosen = p > 0.8 * math.exp(epsilon) * q
    hits, misses = (int(chosen[codes[half:]].sum()) for codes in (one, other))
    trials, tail = len(one) - half, (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(misses + 1, trials - misses, 1 - tail)) if misses < trials else 1.0
    return math.log(max(low - delta, 1e-300) / high)
