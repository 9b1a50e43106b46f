"""The bits as they are, a bit a parameter, to be summed in secret: they never leave a client one by one.

What does leave it is a sum under pads, ``fedpm.secure``. The u of the sample are the client's own; private if its
streams are.
"""

import numpy as np

from fedpm.errors import WireError
from fedpm.registry import CoderSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask, sample_mask, upload_uniform
from fedpm.wire.theta import Vector


class Bits:
    """A bit a parameter, high bit first, zeros behind the last."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask with private randomness and pack it."""
        mask = sample_mask(theta, upload_uniform(private, len(theta)))
        return mask, Coded(np.packbits(mask).tobytes(), float(len(mask)))

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        if len(data) != -(-context.size // 8):
            raise WireError(f"mask of {len(data)} bytes instead of {-(-context.size // 8)}: of another network, or cut")
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        if bits[context.size :].any():
            raise WireError("mask has ones beyond its last parameter: it is damaged")
        return bits[: context.size]


register(
    CoderSpec(
        name="secure-sum",
        label="secure sum",
        about="masks summed in secret: the server learns their sum and no single one",
        build=lambda settings: Bits(),
        form=9,
        threshold_form=10,
        secure=True,
    )
)
