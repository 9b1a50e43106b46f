"""What takes the time of relative-entropy coding, compiled by numba (``pip install "fedpm[fast]"``).

Each function gives the very numbers of the one in NumPy beside it (``candidates.py``): integers, or
floats in the same order. It is faster because nothing leaves the processor's caches between two steps.
"""

import numba
import numpy as np
import numpy.typing as npt

from fedpm.rng import SPLITMIX
from fedpm.wire.theta import Vector

Integers = npt.NDArray[np.int32]
Fractions = npt.NDArray[np.float64]

_STEP, (_SHIFT1, _FACTOR1), (_SHIFT2, _FACTOR2), _SHIFT3 = SPLITMIX


def _sums(key: np.uint64, first: int, number: int, proposal: npt.NDArray[np.uint8], evidence: Integers) -> Integers:
    """Return Σ evidence over the ones of each candidate, of pieces of which ``first`` is the number of the first."""
    pieces, columns = proposal.shape
    words = (columns + 7) // 8
    steps = np.empty(4 * words, np.uint64)  # four candidates at a time: what is loaded serves all of them
    for word in range(4 * words):
        steps[word] = np.uint64(word) * _STEP
    draws = np.empty(4 * words, np.uint64)
    bytes_of = draws.view(np.uint8).reshape(4, -1)
    draw1, draw2, draw3, draw4 = bytes_of[0], bytes_of[1], bytes_of[2], bytes_of[3]
    sums = np.zeros((pieces, (number + 3) // 4 * 4), np.int32)
    for piece in range(pieces):
        chance, weight = proposal[piece], evidence[piece]
        for candidate in range(0, number, 4):
            start = np.uint64((first + piece) * number + candidate) * np.uint64(words) * _STEP + key
            for word in range(4 * words):
                mixed = start + steps[word]
                mixed = (mixed ^ (mixed >> _SHIFT1)) * _FACTOR1
                mixed = (mixed ^ (mixed >> _SHIFT2)) * _FACTOR2
                draws[word] = mixed ^ (mixed >> _SHIFT3)
            sum1 = sum2 = sum3 = sum4 = np.int32(0)
            for column in range(columns):
                here, theta = weight[column], chance[column]
                sum1 += here if draw1[column] < theta else np.int32(0)
                sum2 += here if draw2[column] < theta else np.int32(0)
                sum3 += here if draw3[column] < theta else np.int32(0)
                sum4 += here if draw4[column] < theta else np.int32(0)
            sums[piece, candidate], sums[piece, candidate + 1] = sum1, sum2
            sums[piece, candidate + 2], sums[piece, candidate + 3] = sum3, sum4
    return sums[:, :number]


def _drawn(factor: Vector, excess: Vector, chance: Fractions, digits: int) -> Integers:
    """Return the candidate of each piece that is drawn, as ``candidates.drawn`` does."""
    candidates, pieces = factor.shape
    weights = np.ones((candidates, pieces), np.float32)
    totals = np.empty(pieces, np.float32)
    for _ in range(digits):
        totals[:] = 0
        for row in range(candidates):
            for piece in range(pieces):
                totals[piece] += weights[row, piece] * factor[row, piece] * excess[row, piece]
        for row in range(candidates):
            for piece in range(pieces):
                power = factor[row, piece]
                weights[row, piece] *= power if totals[piece] < 0 else np.float32(1)
                factor[row, piece] = np.sqrt(power)
    totals[:] = 0
    for row in range(candidates):
        for piece in range(pieces):
            totals[piece] += weights[row, piece]
            weights[row, piece] = totals[piece]
    index = np.zeros(pieces, np.int32)
    limits = totals * chance
    for row in range(candidates):
        for piece in range(pieces):
            index[piece] += np.int32(weights[row, piece] <= limits[piece])
    return index


compiled = numba.njit(cache=True)  # at the first call, and kept for later processes
sums, drawn = compiled(_sums), compiled(_drawn)
