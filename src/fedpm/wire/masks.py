"""Lossless coders of a mask on its way up. The three deliver the same mask, m = 1[u < θ_k], at different prices.

``frequency``
    The paper's (Section 3.1.2): one probability for all bits, their empirical frequency.
``side-information``
    The bits in contexts of the broadcast θ_g. What is random stays private to the client.
``shared-randomness``
    Server and client draw the same u, so only where m differs from 1[u < θ_g] is coded, in contexts of the side and
    the distance of u from θ_g. The server learns on which side of u every θ_k lies: with this coder, sampling
    gives no privacy.
"""

import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError
from fedpm.rng import Streams
from fedpm.wire.contexts import Belief, blocks
from fedpm.wire.entropy import AnsCoder, Coded, close_stack, decode, encode, models, open_stack, to_bytes

Mask = npt.NDArray[np.uint8]
Theta = npt.NDArray[np.float32]
_ONES = struct.Struct("<I")


@dataclass(frozen=True)
class Known:
    """What both ends know when a client answers: θ_g, the shared streams of round and client, the layers' sizes."""

    belief: Belief
    shared: Streams
    sizes: tuple[int, ...] = ()

    def uniform(self) -> npt.NDArray[np.uint32]:
        """Return the u of this upload, if client and server share it."""
        return upload_uniform(self.shared, len(self.belief.numerator))


class MaskCoder(Protocol):
    """Turns a client's θ_k into bytes, and bytes into a mask that is a sample of Bern(θ_k)."""

    def encode(self, theta: Theta, known: Known, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask and code it; ``private`` are the client's own streams of this round."""

    def decode(self, data: bytes, known: Known) -> Mask:
        """Return the mask, or raise WireError."""


def upload_uniform(streams: Streams, size: int) -> npt.NDArray[np.uint32]:
    """Return the 32-bit u of an upload."""
    return streams.uint32("upload", size)


def sample_mask(theta: Theta, uniform: npt.NDArray[np.uint32]) -> Mask:
    """Return m = 1[u < θ] for uniform 32-bit integers u: a sample of Bern(θ), exact to 2⁻³²."""
    mask = np.empty(len(theta), np.uint8)
    for part in blocks(len(theta)):
        mask[part] = uniform[part] < (theta[part] * np.float32(2**32)).astype(np.uint64)
    return mask


def entropy(probability: float) -> float:
    """Return the entropy of a bit in bits, H(p): the paper's bitrate for a frequency of ones."""
    if probability in (0.0, 1.0):
        return 0.0
    return float(-(probability * np.log2(probability) + (1 - probability) * np.log2(1 - probability)))


class Frequency:
    """The paper's coder: the number of ones, then the bits at that frequency."""

    def encode(self, theta: Theta, known: Known, private: Streams) -> tuple[Mask, Coded]:
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

    def decode(self, data: bytes, known: Known) -> Mask:
        """Return the mask."""
        return self.decode_mask(data, len(known.belief.numerator))

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


class SideInformation:
    """The bits in contexts of the broadcast θ_g."""

    def encode(self, theta: Theta, known: Known, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask with private randomness and code it."""
        mask = sample_mask(theta, upload_uniform(private, len(theta)))
        return mask, encode(mask, known.belief.level(), 2)

    def decode(self, data: bytes, known: Known) -> Mask:
        """Return the mask."""
        return decode(data, known.belief.level(), 2).astype(np.uint8)


class SharedRandomness:
    """Only what differs from the mask that θ_g would give for the same u."""

    def encode(self, theta: Theta, known: Known, private: Streams) -> tuple[Mask, Coded]:
        """Sample a mask with shared randomness and code it."""
        uniform = known.uniform()
        mask = sample_mask(theta, uniform)
        contexts = known.belief.side_and_distance(uniform)
        return mask, encode(mask ^ (contexts >> 6), contexts, 2)

    def decode(self, data: bytes, known: Known) -> Mask:
        """Return the mask."""
        contexts = known.belief.side_and_distance(known.uniform())
        mask: Mask = decode(data, contexts, 2).astype(np.uint8)
        mask ^= contexts >> 6
        return mask
