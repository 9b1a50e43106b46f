"""FedAvg: changes of weights as they are, 32 bits each; the line that the others are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpm.errors import WireError
from fedpm.methods.dense.quantiser import Quantised, register_quantiser
from fedpm.rng import Streams
from fedpm.wire.entropy import Coded
from fedpm.wire.theta import Vector

if TYPE_CHECKING:
    from fedpm.model.masking import MaskedNetwork


@dataclass(frozen=True)
class Float32:
    """No quantiser at all."""

    def encode(self, delta: Vector, network: MaskedNetwork, rng: Streams, shared: Streams) -> Quantised:
        """Return the change as float32."""
        return Quantised(Coded(delta.astype("<f4").tobytes(), 32.0 * network.size), 32.0)

    def decode(self, data: bytes, network: MaskedNetwork, shared: Streams) -> Vector:
        """Return the change."""
        if len(data) != 4 * network.size:
            raise WireError(f"change of {len(data)} bytes: should be {4 * network.size}; it was cut or padded")
        return np.frombuffer(data, "<f4").astype(np.float32)


register_quantiser(
    "fedavg",
    "FedAvg",
    about="changes of weights as they are, 32 bits each",
    form=16,
    quantiser=lambda settings: Float32(),
)
