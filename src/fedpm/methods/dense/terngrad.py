"""TernGrad (Wen et al. 2017): of every layer a scale S, and of every weight −1, 0 or 1.

With x clipped to ±2.5 standard deviations and S = max|x|, a weight sends sign(x) with probability |x|/S, else 0, so
that S · symbol is x on average.
"""

from dataclasses import dataclass

import numpy as np

from fedpm.methods.dense.deltas import Quantised
from fedpm.methods.dense.layered import pack, read_scales, spread, unpack
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.wire.masks import sample_mask


@dataclass(frozen=True)
class Ternary:
    """Random ternary values, unbiased for the clipped change."""

    clip: float = 2.5
    form: int = 18

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send S of every layer and sign(x) · Bern(|x|/S)."""
        clipped = self.clipped(delta, network)
        magnitude = np.abs(clipped)
        scales = np.array([layer.max() for layer in network.pieces(magnitude)], np.float32)
        magnitude /= np.maximum(spread(scales, network), np.float32(1e-37))  # a layer of zeros stays zero
        kept = sample_mask(magnitude, rng.uint32("ternary", network.size))
        return pack(scales, np.sign(clipped).astype(np.int32) * kept + 1, network, 3)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return S · symbol."""
        scales, rest = read_scales(data, len(network.parts))
        symbols = unpack(rest, network, 3) - 1
        return symbols.astype(np.float32) * spread(scales, network)

    def clipped(self, delta: Vector, network: MaskedNetwork) -> Vector:
        """Return the change with every layer clipped to so many of its standard deviations."""
        bounds = [self.clip * layer.std(dtype=np.float64) for layer in network.pieces(delta)]
        bound = spread(np.array(bounds, np.float32), network)
        return delta.clip(-bound, bound)
