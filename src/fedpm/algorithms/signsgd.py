"""SignSGD (Bernstein et al. 2018): the signs of the change; the server's rate gives them a length.

The server steps along the mean of the signs, or along its sign (majority vote). A weight that did not change, as
below a dead unit, has sign 0: a third symbol, which costs nothing where it does not occur.
"""

from dataclasses import dataclass

import numpy as np

from fedpm.algorithms.deltas import Quantised
from fedpm.algorithms.layered import pack, unpack
from fedpm.masking import MaskedNetwork, Vector
from fedpm.rng import Streams


@dataclass(frozen=True)
class Signs:
    """Signs and no scale."""

    form: int = 17

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send sign(delta)."""
        return pack(np.zeros(0, np.float32), np.sign(delta).astype(np.int32) + 1, network, 3)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the signs."""
        return (unpack(data, network, 3) - 1).astype(np.float32)
