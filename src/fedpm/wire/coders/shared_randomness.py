"""Server and client draw the same u, so only where m differs from 1[u < θ_g] is coded.

The contexts are the side and the distance of u from θ_g. The server learns on which side of u every θ_k lies: with this
coder, sampling gives no privacy.
"""

import numpy as np

from fedpm.registry import CoderSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.entropy import Coded, decode, encode
from fedpm.wire.masks import Mask, sample_mask
from fedpm.wire.theta import Vector


class SharedRandomness:
    """Only what differs from the mask that θ_g would give for the same u."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask with shared randomness and code it."""
        uniform = context.uniform()
        mask = sample_mask(theta, uniform)
        contexts = context.theta.side_and_distance(uniform)
        return mask, encode(mask ^ (contexts >> 6), contexts, 2)

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        contexts = context.theta.side_and_distance(context.uniform())
        mask: Mask = decode(data, contexts, 2).astype(np.uint8)
        mask ^= contexts >> 6
        return mask


register(
    CoderSpec(
        name="shared-randomness",
        label="shared randomness",
        about="only what differs from the mask that θ and shared draws predict",
        build=lambda settings: SharedRandomness(),
        form=3,
        shared_randomness=True,
        shared_uniform=True,
    )
)
