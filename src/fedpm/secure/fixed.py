"""Numbers in fixed point, so that their sum is one of integers: steps of 2⁻²⁴ from −2²⁰ up to 2²⁰."""

import numpy as np
import numpy.typing as npt

BITS = 45
"""Of one number."""
_STEP = 2.0**24
_OFFSET = 2 ** (BITS - 1)


def to_fixed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """Return numbers, each rounded to the nearest step and below 2²⁰ in size, as integers from 0 to 2⁴⁵ − 1."""
    steps = np.rint(values.astype(np.float64) * _STEP)
    fixed: npt.NDArray[np.uint64] = (steps + _OFFSET).astype(np.uint64)  # exact: a float64 holds these integers
    return fixed


def mean_of(total: npt.NDArray[np.unsignedinteger], count: int) -> npt.NDArray[np.float32]:
    """Return the mean of so many numbers, of which the integers were summed."""
    steps = total.astype(np.int64) - count * _OFFSET
    mean: npt.NDArray[np.float32] = (steps / (count * _STEP)).astype(np.float32)
    return mean
