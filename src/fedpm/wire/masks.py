"""Masks as samples of probabilities."""

import numpy as np
import numpy.typing as npt

from fedpm.rng import Streams
from fedpm.wire.theta import Vector, blocks

Mask = npt.NDArray[np.uint8]
Signs = npt.NDArray[np.int8]
"""A mask of −1 and 1 over weights that stay, and 0 over those that were pruned before training."""


def upload_uniform(streams: Streams, size: int) -> npt.NDArray[np.uint32]:
    """Return the 32-bit u of an upload."""
    return streams.uint32("upload", size)


def sample_mask(theta: Vector, uniform: npt.NDArray[np.uint32]) -> Mask:
    """Return m = 1[u < θ] for uniform 32-bit integers u: a sample of Bern(θ), exact to 2⁻³²."""
    mask = np.empty(len(theta), np.uint8)
    for part in blocks(len(theta)):
        mask[part] = uniform[part] < (theta[part] * np.float32(2**32)).astype(np.uint64)
    return mask


def entropy(probability: float) -> float:
    """Return the entropy of a bit in bits, H(p): the paper's bitrate for a frequency of ones."""
    if probability in (0.0, 1.0):
        return 0.0
    return float(-(probability * np.log2(probability) + (1 - probability) * np.log2(1 - probability)))
