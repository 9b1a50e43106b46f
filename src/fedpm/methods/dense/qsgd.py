"""QSGD (Alistarh et al. 2017): of every layer its norm, and of every weight a signed level of s = a·√n levels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.dense.layered import (
    decode_symbols,
    encode_symbols,
    per_weight,
    read_scales,
    read_setting,
    sizes,
    write_setting,
)
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.registry import Settings, setting
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import sample_mask
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork

_TOP = struct.Struct("<I")
_TINY = np.float32(1e-30)  # a layer that hardly changed stays as it was; steps over less would overflow


@dataclass(frozen=True)
class Levels:
    """Levels l = s|x|/‖x‖₂, rounded at random to one of the two integers beside l: unbiased.

    ``per_root`` is a: for n weights there are s = a·√n levels, rounded and at least 1. What is sent depends on a alone
    if the change is Gaussian.
    """

    per_root: float

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send the norm of every layer and the signed levels."""
        norms = np.array([np.linalg.norm(layer.astype(np.float64)) for layer in network.pieces(delta)], np.float32)
        steps = self.steps(network)
        exact: Vector = np.abs(delta) * per_weight((steps / np.maximum(norms, _TINY)).astype(np.float32), network)
        below = np.floor(exact)
        levels = below + sample_mask(exact - below, rng.uint32("levels", network.size))
        signed = (np.sign(delta) * np.minimum(levels, per_weight(steps, network))).astype(np.int32)
        top = max(1, int(np.abs(signed).max()))
        quantised = encode_symbols(norms, signed + top, network, 2 * top + 1)
        head = write_setting(self.per_root) + _TOP.pack(top)
        return Quantised(
            Coded(head + quantised.coded.data, quantised.coded.ideal_bits + 8 * len(head)), quantised.paper_bpp
        )

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
        levels = decode_symbols(rest, network, 2 * top + 1) - top
        values: Vector = levels.astype(np.float32) * per_weight(norms / steps, network)
        return values

    def steps(self, network: MaskedNetwork) -> Vector:
        """Return s of every layer."""
        return np.maximum(1, np.rint(self.per_root * np.sqrt(sizes(network)))).astype(np.float32)


class QSGDSettings(Settings):
    """The quantiser of QSGD."""

    levels: float = setting(0.25, "levels s of a layer of n weights, divided by √n", ge=1e-3, le=100)


register_quantiser(
    "qsgd",
    "QSGD",
    about="a signed level of each weight, and a norm a layer",
    form=19,
    quantiser=lambda settings: Levels(settings.levels),
    settings=QSGDSettings,
)
