"""The bits in contexts of the broadcast θ_g. The u of the sample are the client's own; private if its streams are."""

import numpy as np

from fedpm.registry import CoderSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.masks import Mask, sample_mask, upload_uniform
from fedpm.wire.theta import Vector


class SideInformation:
    """The bits in contexts of the broadcast θ_g."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask with private randomness and code it."""
        mask = sample_mask(theta, upload_uniform(private, len(theta)))
        return mask, encode(mask, context.theta.level(), 2)

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        return decode(data, context.theta.level(), 2).astype(np.uint8)


register(
    CoderSpec(
        name="side-information",
        label="side information",
        about="bits in contexts of the broadcast θ",
        build=lambda settings: SideInformation(),
        form=2,
        threshold_form=5,
    )
)
