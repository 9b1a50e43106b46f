"""Coders of a mask on its way up.

``frequency`` is the paper's (Section 3.1.2): arithmetic coding with the one empirical frequency of ones.
"""

import struct

import numpy as np
import numpy.typing as npt

from fedpm.codec.entropy import Decoder, Encoder, bernoulli
from fedpm.errors import WireError

Mask = npt.NDArray[np.uint8]
_ONES = struct.Struct("<I")


def encode_frequency(mask: Mask) -> bytes:
    """Code a mask of zeros and ones: the number of ones, then the bits at that frequency."""
    ones = int(mask.sum(dtype=np.int64))
    encoder = Encoder()
    encoder.push(mask, bernoulli(ones / len(mask)))
    return _ONES.pack(ones) + encoder.to_bytes()


def decode_frequency(data: bytes, size: int) -> Mask:
    """Decode a mask of ``size`` parameters."""
    if len(data) < _ONES.size:
        raise WireError(f"mask of {len(data)} bytes: too short to hold its number of ones; it was cut")
    (ones,) = _ONES.unpack_from(data)
    if ones > size:
        raise WireError(f"mask claims {ones} ones among {size} parameters: it is damaged or of another model")
    decoder = Decoder(data[_ONES.size :])
    mask = decoder.pop(bernoulli(ones / size), size).astype(np.uint8)
    decoder.finish()
    if int(mask.sum(dtype=np.int64)) != ones:
        raise WireError(f"mask does not hold the {ones} ones that it claims: it is damaged")
    return mask


def entropy(probability: float) -> float:
    """Return the entropy of a bit in bits, H(p): the paper's bitrate for a frequency of ones."""
    if probability in (0.0, 1.0):
        return 0.0
    return float(-(probability * np.log2(probability) + (1 - probability) * np.log2(1 - probability)))
