"""Vectors of integers modulo a power of two: their sums, their pads, and their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedpm.errors import ConfigError, WireError

Words = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Part:
    """A vector of ``size`` integers modulo 2^``bits``."""

    size: int
    bits: int

    def __post_init__(self) -> None:
        if not (0 <= self.size < 2**32 and 1 <= self.bits <= 64):
            raise ConfigError(
                f"a part of {self.size} integers of {self.bits} bits: use fewer than 2^32, of 1 to 64 bits"
            )

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The least unsigned type that holds the integers: its own wrap-around keeps sums right modulo 2^bits."""
        return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if self.bits <= 8 * size))

    @property
    def packed(self) -> int:
        """Bytes on the wire: a plane for every bit."""
        return self.bits * -(-self.size // 8)


def sum_bits(clients: int, bits: int = 1) -> int:
    """Return the bits of a sum of an integer of so many bits of every client; of one bit it is ⌈log2(K + 1)⌉."""
    return (clients * ((1 << bits) - 1)).bit_length()


class Vectors:
    """A running sum of one vector for each part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._sums = [np.zeros(part.size, part.dtype) for part in parts]

    def add(self, values: Sequence[npt.NDArray[np.integer]]) -> None:
        """Add integers from 0 to 2^bits − 1."""
        found, wanted = [value.shape for value in values], [(part.size,) for part in self._parts]
        if found != wanted:
            raise ConfigError(f"vectors of shapes {found} do not fit the session's {wanted}: give one for each part")
        for part, value in zip(self._parts, values, strict=True):
            if value.size and not 0 <= int(value.min()) <= int(value.max()) < 2**part.bits:
                raise ConfigError(
                    f"values from {value.min()} to {value.max()} do not fit into {part.bits} bits unsigned"
                )
        for held, value in zip(self._sums, values, strict=True):
            held += value.astype(held.dtype)

    def add_pad(self, seed: bytes, *, sign: int) -> None:
        """Add (``sign`` 1) or take away (−1) the pad of a seed: ChaCha20's keystream, read as integers."""
        stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
        for held in self._sums:
            pad = np.frombuffer(stream.update(bytes(held.nbytes)), held.dtype)
            (np.add if sign > 0 else np.subtract)(held, pad, out=held)

    def values(self) -> list[Words]:
        """Return the sums modulo 2^bits."""
        return [held & held.dtype.type(2**part.bits - 1) for part, held in zip(self._parts, self._sums, strict=True)]

    def to_bytes(self) -> bytes:
        """Return the sums packed, ``bits`` bits an integer."""
        parts = zip(self._parts, self.values(), strict=True)
        planes = [np.packbits((values >> bit) & 1 != 0) for part, values in parts for bit in range(part.bits)]
        return b"".join(plane.tobytes() for plane in planes)

    def add_bytes(self, data: bytes) -> None:
        """Add what ``to_bytes`` gave; anything else raises WireError and leaves the sums as they were."""
        wanted = sum(part.packed for part in self._parts)
        if len(data) != wanted:
            raise WireError(f"masked input of {len(data)} bytes instead of {wanted}: it is of another session")
        unpacked, start = [], 0
        for part in self._parts:
            unpacked.append(_unpack(data[start : start + part.packed], part))
            start += part.packed
        self.add(unpacked)


def _unpack(data: bytes, part: Part) -> Words:
    planes = np.unpackbits(np.frombuffer(data, np.uint8).reshape(part.bits, -1), axis=1)
    if planes[:, part.size :].any():
        raise WireError("masked input has ones beyond its last integer: it is damaged")
    values = np.zeros(part.size, part.dtype)
    for bit, plane in enumerate(planes[:, : part.size]):
        values |= plane.astype(part.dtype) << part.dtype.type(bit)
    return values
