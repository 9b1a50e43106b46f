"""The best levels for Gaussian numbers, which the coordinates of a rotated change nearly are, and a scale a block.

At 1 bit these are signs. Below 1 bit, both ends draw which weights are sent at all, and those count 1/p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpm.methods.dense.layered import read_scales, read_setting, symbol_entropy, write_setting
from fedpm.methods.dense.quantiser import Quantised
from fedpm.methods.dense.rotation import Rotation, paper_bpp
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

LLOYD_MAX = {1: (0.7978846,), 2: (0.4527800, 1.5104176)}
"""The positive half of the levels with the least mean squared error for N(0, 1), by bits."""


@dataclass(frozen=True)
class GaussianLevels:
    """``bits`` per parameter: up to 1, or 2; the scale ‖y‖²/⟨Q(z), y⟩ makes it unbiased over rotations.

    ``called`` is the setting that says so.
    """

    bits: float
    called: str = "dense.broadcast_bits"

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send the scale of every block, and the level that is nearest to z = y·√P/‖y‖."""
        sent = delta[self.kept(network, shared)] / np.float32(min(1.0, self.bits))
        rotation = Rotation(len(sent), shared)
        y = rotation.forward(sent)
        energy = rotation.sums(y * y)
        deviation = np.sqrt(energy / rotation.lengths).astype(np.float32)
        symbols = self._nearest(y, rotation.per_coordinate(deviation))
        scales = energy / np.maximum(rotation.sums(self.levels[symbols] * y), np.finfo(np.float32).tiny)
        coded = encode(symbols, np.zeros(len(y), np.uint8), len(self.levels))
        data = write_setting(self.bits) + scales.astype("<f4").tobytes() + coded.data
        paper = paper_bpp(network) if self.bits == 1 else symbol_entropy(symbols) * len(y) / network.size
        return Quantised(Coded(data, coded.ideal_bits + 32 * (1 + len(scales))), paper)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the levels, scaled and rotated back."""
        kept = self.kept(network, shared)
        rotation = Rotation(int(kept.sum()), shared)
        scales, rest = read_scales(read_setting(data, self.bits, self.called), len(rotation.lengths))
        symbols = decode(rest, np.zeros(rotation.padded, np.uint8), len(self.levels))
        delta = np.zeros(network.size, np.float32)
        delta[kept] = rotation.inverse(self.levels[symbols] * rotation.per_coordinate(scales))
        return delta

    def kept(self, network: MaskedNetwork, shared: Streams) -> npt.NDArray[np.bool_]:
        """Return which weights are sent: each with probability ``bits``, and all from 1 bit on."""
        if self.bits >= 1:
            return np.ones(network.size, np.bool_)
        kept: npt.NDArray[np.bool_] = shared.uint32("kept", network.size) < np.uint64(self.bits * 2**32)
        return kept

    @property
    def levels(self) -> Vector:
        """The levels in rising order."""
        half = np.array(LLOYD_MAX[max(1, int(self.bits))], np.float32)
        return np.concatenate((-half[::-1], half))

    def _nearest(self, y: Vector, deviation: Vector) -> npt.NDArray[np.int32]:
        """Return the number of the level that is nearest to each coordinate in units of its block's deviation."""
        bounds = (self.levels[1:] + self.levels[:-1]) / 2
        return sum(((y >= bound * deviation).astype(np.int32) for bound in bounds), np.zeros(len(y), np.int32))
