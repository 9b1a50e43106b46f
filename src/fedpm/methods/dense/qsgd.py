"""QSGD (Alistarh et al. 2017): of every layer its norm, and of every weight a signed level of s = a·√n levels."""

import struct
from dataclasses import dataclass

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.dense.deltas import Quantised
from fedpm.methods.dense.layered import pack, read_scales, read_setting, sizes, spread, unpack, write_setting
from fedpm.model.masking import MaskedNetwork, Vector
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import sample_mask

_TOP = struct.Struct("<I")
_TINY = np.float32(1e-30)  # a layer that hardly changed stays as it was; steps over less would overflow


@dataclass(frozen=True)
class Levels:
    """Levels l = s|x|/‖x‖₂, rounded at random to one of the two integers beside l: unbiased.

    ``per_root`` is a: for n weights there are s = a·√n levels, rounded and at least 1. What is sent depends on a alone
    if the change is Gaussian.
    """

    per_root: float
    form: int = 19

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send the norm of every layer and the signed levels."""
        norms = np.array([np.linalg.norm(layer.astype(np.float64)) for layer in network.pieces(delta)], np.float32)
        steps = self.steps(network)
        exact: Vector = np.abs(delta) * spread((steps / np.maximum(norms, _TINY)).astype(np.float32), network)
        below = np.floor(exact)
        levels = below + sample_mask(exact - below, rng.uint32("levels", network.size))
        signed = (np.sign(delta) * np.minimum(levels, spread(steps, network))).astype(np.int32)
        top = max(1, int(np.abs(signed).max()))
        found = pack(norms, signed + top, network, 2 * top + 1)
        head = write_setting(self.per_root) + _TOP.pack(top)
        return Quantised(Coded(head + found.coded.data, found.coded.ideal_bits + 8 * len(head)), found.paper_bpp)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return ‖x‖₂ · level/s."""
        data = read_setting(data, self.per_root, "qsgd.levels")
        if len(data) < _TOP.size:
            raise WireError(f"upload of {len(data)} bytes: too short to hold its largest level; it was cut")
        (top,) = _TOP.unpack_from(data)
        steps = self.steps(network)
        if not 1 <= top <= steps.max():
            raise WireError(f"upload of levels up to {top}: should be from 1 to {int(steps.max())}; it is damaged")
        norms, rest = read_scales(data[_TOP.size :], len(network.parts))
        levels = unpack(rest, network, 2 * top + 1) - top
        values: Vector = levels.astype(np.float32) * spread(norms / steps, network)
        return values

    def steps(self, network: MaskedNetwork) -> Vector:
        """Return s of every layer."""
        return np.maximum(1, np.rint(self.per_root * np.sqrt(sizes(network)))).astype(np.float32)
