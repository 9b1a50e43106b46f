"""The paper's coder (Section 3.1.2): one probability for all bits, their empirical frequency."""

import struct

import numpy as np

from fedpm.errors import WireError
from fedpm.registry import CoderSpec, register
from fedpm.rng import Streams
from fedpm.wire.coders.base import Context
from fedpm.wire.entropy import AnsCoder, Coded, close_stack, models, open_stack, to_bytes
from fedpm.wire.masks import Mask, entropy, sample_mask, upload_uniform
from fedpm.wire.theta import Vector

_ONES = struct.Struct("<I")


class Frequency:
    """The number of ones, then the bits at that frequency."""

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask and code it."""
        mask = sample_mask(theta, upload_uniform(private, len(theta)))
        return mask, self.encode_mask(mask)

    def encode_mask(self, mask: Mask) -> Coded:
        """Code a mask of zeros and ones."""
        ones = int(mask.sum(dtype=np.int64))
        ans = AnsCoder()
        ans.encode_reverse(mask.astype(np.int32), models.Bernoulli(ones / len(mask), perfect=False))
        data = _ONES.pack(ones) + to_bytes(ans)
        return Coded(data, entropy(ones / len(mask)) * len(mask))

    def decode(self, data: bytes, context: Context) -> Mask:
        """Return the mask."""
        return self.decode_mask(data, context.size)

    def decode_mask(self, data: bytes, size: int) -> Mask:
        """Return a mask of ``size`` parameters."""
        if len(data) < _ONES.size:
            raise WireError(f"mask of {len(data)} bytes: too short to hold its number of ones; it was cut")
        (ones,) = _ONES.unpack_from(data)
        if ones > size:
            raise WireError(f"mask claims {ones} ones among {size} parameters: it is damaged or of another model")
        ans = open_stack(data[_ONES.size :])
        mask: Mask = ans.decode(models.Bernoulli(ones / size, perfect=False), size).astype(np.uint8)
        close_stack(ans)
        if int(mask.sum(dtype=np.int64)) != ones:
            raise WireError(f"mask does not hold the {ones} ones that it claims: it is damaged")
        return mask


register(
    CoderSpec(
        name="frequency",
        label="frequency",
        about="the paper's: one probability for all bits",
        build=lambda settings: Frequency(),
        form=1,
        threshold_form=4,
    )
)
