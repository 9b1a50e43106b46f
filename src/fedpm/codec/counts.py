"""The coder of the server's integer counts on their way down: never floats.

θ is a function of how many of ``total`` masks had a one, so the counts are all there is to send.
"""

import struct

import numpy as np
import numpy.typing as npt

from fedpm.codec.entropy import Decoder, Encoder, categorical
from fedpm.errors import WireError

Counts = npt.NDArray[np.uint32]
_TOTAL = struct.Struct("<I")


def encode_counts(counts: Counts, total: int) -> bytes:
    """Code counts from 0 to ``total``: their histogram, then each of them at its frequency."""
    histogram = np.bincount(counts, minlength=total + 1).astype("<u4")
    encoder = Encoder()
    encoder.push(counts, categorical(histogram))
    return _TOTAL.pack(total) + histogram.tobytes() + encoder.to_bytes()


def decode_counts(data: bytes, size: int) -> tuple[Counts, int]:
    """Decode the counts of ``size`` parameters and their total."""
    if len(data) < _TOTAL.size:
        raise WireError(f"counts of {len(data)} bytes: too short to hold their total; the message was cut")
    (total,) = _TOTAL.unpack_from(data)
    end = _TOTAL.size + 4 * (total + 1)
    if end > len(data):
        raise WireError(f"counts claim a total of {total}, whose histogram would not fit {len(data)} bytes: damaged")
    histogram = np.frombuffer(data[_TOTAL.size : end], "<u4").astype(np.uint32)
    if int(histogram.sum(dtype=np.uint64)) != size:
        raise WireError(f"histogram of counts does not sum to {size} parameters: damaged or of another model")
    decoder = Decoder(data[end:])
    counts = decoder.pop(categorical(histogram), size).astype(np.uint32)
    decoder.finish()
    return counts, total
