"""DRIVE (Vargaftik et al. 2021): the signs of the rotated change, and a scale for each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpm.methods.dense.layered import read_scales
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.methods.dense.rotation import Rotation, paper_bpp
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True)
class RotatedSigns:
    """sign(y) and S = ‖y‖₂²/‖y‖₁ of the rotation y, unbiased over rotations."""

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send S of every block and the signs."""
        rotation = Rotation(network.size, shared)
        y = rotation.forward(delta)
        scales = rotation.sums(y * y) / np.maximum(rotation.sums(np.abs(y)), np.finfo(np.float32).tiny)
        coded = encode(y >= 0, np.zeros(len(y), np.uint8), 2)
        data = scales.astype("<f4").tobytes() + coded.data
        return Quantised(Coded(data, coded.ideal_bits + 32 * len(scales)), paper_bpp(network))

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the signs, scaled and rotated back."""
        rotation = Rotation(network.size, shared)
        scales, rest = read_scales(data, len(rotation.lengths))
        signs = decode(rest, np.zeros(rotation.padded, np.uint8), 2) * 2 - 1
        return rotation.inverse(signs.astype(np.float32) * rotation.per_coordinate(scales))


register_quantiser(
    "drive",
    "DRIVE",
    about="signs of the rotated changes, and a scale a block",
    form=20,
    quantiser=lambda settings: RotatedSigns(),
)
