"""TernGrad (Wen et al. 2017): of every layer a scale S, and of every weight −1, 0 or 1.

With x clipped to ±2.5 standard deviations and S = max|x|, a weight sends sign(x) with probability |x|/S, else 0, so
that S · symbol is x on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpm.methods.dense.layered import decode_symbols, encode_symbols, per_weight, read_scales
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.registry import Settings, setting
from fedpm.rng import Streams
from fedpm.wire.masks import sample_mask
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True)
class Ternary:
    """Random ternary values, unbiased for the clipped change."""

    clip: float = 2.5

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send S of every layer and sign(x) · Bern(|x|/S)."""
        clipped = self.clipped(delta, network)
        magnitude = np.abs(clipped)
        scales = np.array([layer.max() for layer in network.pieces(magnitude)], np.float32)
        magnitude /= np.maximum(per_weight(scales, network), np.float32(1e-37))  # a layer of zeros stays zero
        kept = sample_mask(magnitude, rng.uint32("ternary", network.size))
        return encode_symbols(scales, np.sign(clipped).astype(np.int32) * kept + 1, network, 3)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return S · symbol."""
        scales, rest = read_scales(data, len(network.parts))
        symbols = decode_symbols(rest, network, 3) - 1
        return symbols.astype(np.float32) * per_weight(scales, network)

    def clipped(self, delta: Vector, network: MaskedNetwork) -> Vector:
        """Return the change with every layer clipped to so many of its standard deviations."""
        bounds = [self.clip * layer.std(dtype=np.float64) for layer in network.pieces(delta)]
        bound = per_weight(np.array(bounds, np.float32), network)
        return delta.clip(-bound, bound)


class TernGradSettings(Settings):
    """The quantiser of TernGrad."""

    clip: float = setting(2.5, "bound of a change, in standard deviations of its layer", gt=0)


register_quantiser(
    "terngrad",
    "TernGrad",
    about="−1, 0 or 1 of each weight, and a scale a layer",
    form=18,
    quantiser=lambda settings: Ternary(settings.clip),
    settings=TernGradSettings,
)
