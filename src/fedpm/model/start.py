"""Where training starts: what a seed says of every weight, in integers or sums that are exact: all machines agree."""

from math import exp, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.kinds import Part
    from fedpm.model.masking import MaskedNetwork

Integers = npt.NDArray[np.uint32]

TOTAL = 2**16
"""θ is a fraction of so many."""
LEVELS = np.array([round(TOTAL / (1 + exp(-NormalDist().inv_cdf((i + 0.5) / 256)))) for i in range(256)], np.uint32)
"""θ = sigmoid(s), s ~ N(0, 1), in 256 equally likely levels."""
HALF = np.repeat(np.array([0, TOTAL], np.uint32), 128)
"""θ of 0 or 1: a random half of the weights."""
FEWEST = 8
"""A unit of fewer weights gets a random half of them: one each of two signs would be too few."""
AT_ONCE = 2**22
"""Weights whose order is sorted at a time."""


def starting_theta(network: "MaskedNetwork", seed: int) -> Integers:
    """Return θ of every masked weight before any training, times ``TOTAL``."""
    if network.keep is not None:
        return np.full(network.size, round(network.keep * TOTAL), np.uint32)
    draws = Streams(seed).uint8("initial scores", network.size)
    if network.init == "zero-sum":
        return _zero_sum(network, seed, draws)
    return (HALF if network.init == "half" else LEVELS)[draws]


def starting_weights(network: "MaskedNetwork", seed: int) -> Vector:
    """Return the weights from which dense training starts; of units that sum to 0 they have the same power."""
    weights = Streams(seed).coarse_normal("dense weights", network.size)
    for part, values in zip(network.parts, network.pieces(weights), strict=True):
        if network.init == "zero-sum" and has_rows(part):
            rows = values.reshape(part.shape[0], -1)
            size = rows.shape[1]
            # the numbers are multiples of 2⁻¹⁶, so that their sum is exact, in whatever order
            rows[:] = (rows - rows.sum(1, dtype=np.float64, keepdims=True) / size) * sqrt(size / (size - 1))
        values *= np.float32(part.dense_sigma)
        if part.zero_row is not None:
            values.reshape(part.shape)[part.zero_row] = 0
    return weights


def _zero_sum(network: "MaskedNetwork", seed: int, draws: npt.NDArray[np.uint8]) -> Integers:
    """Return θ of 0 or 1, with which each unit keeps as many weights of +σ as of −σ, and no bias.

    A random half of a unit's weights has a sum that is not 0, and passes on above all what its inputs have in common:
    behind a few layers all inputs look alike.
    """
    theta = HALF[draws]
    positive = Streams(seed).bits("weights", network.size).view(bool)
    pieces = zip(network.parts, *map(network.pieces, (theta, positive, draws)), strict=True)
    for part, ones, plus, drawn in pieces:
        if len(part.shape) == 1:
            ones[:] = 0
        elif has_rows(part):
            size = part.size // part.shape[0]
            for first in range(0, part.size, most := max(1, AT_ONCE // size) * size):
                rows = (vector[first : first + most].reshape(-1, size) for vector in (ones, plus, drawn))
                _even(*rows)
    return theta


def has_rows(part: "Part") -> bool:
    """Tell whether each row of a parameter is what one unit sums up, and long enough."""
    size = part.size // part.shape[0]
    return part.fan_in == size >= FEWEST


def _even(ones: Integers, plus: npt.NDArray[np.bool_], drawn: npt.NDArray[np.uint8]) -> None:
    """Keep in each row a quarter of the weights for each sign, those that were drawn lowest, or fewer if there are."""
    order = np.argsort(drawn, axis=1, kind="stable")
    sorted_plus = np.take_along_axis(plus, order, 1)
    quarter = (ones.shape[1] + 2) // 4
    most = np.minimum(plus.sum(1, keepdims=True), quarter)
    most = np.minimum(most, ones.shape[1] - plus.sum(1, keepdims=True))
    kept = np.where(sorted_plus, sorted_plus.cumsum(1) <= most, (~sorted_plus).cumsum(1) <= most)
    mixed = most[:, 0] > 0  # a row of one sign alone stays as it was drawn
    placed = np.zeros_like(kept)
    np.put_along_axis(placed, order, kept, 1)
    ones[mixed] = placed[mixed] * np.uint32(TOTAL)
