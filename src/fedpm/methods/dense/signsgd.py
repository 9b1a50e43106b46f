"""SignSGD (Bernstein et al. 2018): the signs of the change; the server's rate gives them a length.

The server steps along the mean of the signs, or along its sign (majority vote). A weight that did not change, as
below a dead unit, tosses a coin, which the mean over clients forgets: a third symbol would cost more than the one bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpm.methods.dense.layered import decode_symbols, encode_symbols
from fedpm.methods.dense.quantiser import Quantised, register_quantiser, the_mean
from fedpm.registry import Settings, setting
from fedpm.rng import Streams
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True)
class Signs:
    """Signs and no scale."""

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Send sign(delta)."""
        signs = np.where(delta == 0, rng.bits("signs of zero", network.size), delta > 0)
        return encode_symbols(np.zeros(0, np.float32), signs.astype(np.int32), network, 2)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the signs."""
        return (2 * decode_symbols(data, network, 2) - 1).astype(np.float32)


class SignSGDSettings(Settings):
    """The server of SignSGD."""

    vote: bool = setting(False, "step along the majority's sign instead of the mean of signs")


register_quantiser(
    "signsgd",
    "SignSGD",
    about="signs of the changes",
    form=17,
    quantiser=lambda settings: Signs(),
    settings=SignSGDSettings,
    tuned={"local.lr": 0.03, "local.lr_fade": 0.0, "dense.optimiser": "sgd", "dense.server_lr": 0.001},
    direction=lambda settings: np.sign if settings.vote else the_mean,
)
