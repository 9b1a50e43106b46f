"""SignSGD (Bernstein et al. 2018): the signs of the change; the server's rate gives them a length.

The server steps along the mean of the signs, or along its sign (majority vote). A weight that did not change, as
below a dead unit, tosses a coin, which the mean over clients forgets: a third symbol would cost more than the one bit.
"""

from dataclasses import dataclass

import numpy as np

from fedpm.methods.dense.deltas import Quantised
from fedpm.methods.dense.layered import pack, unpack
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams


@dataclass(frozen=True)
class Signs:
    """Signs and no scale."""

    form: int = 17

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send sign(delta)."""
        signs = np.where(delta == 0, rng.bits("signs of zero", network.size), delta > 0)
        return pack(np.zeros(0, np.float32), signs.astype(np.int32), network, 2)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the signs."""
        return (2 * unpack(data, network, 2) - 1).astype(np.float32)
