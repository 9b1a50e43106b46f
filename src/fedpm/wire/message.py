"""The frame of every message: 36 bytes, a coded part, and floats, coded or as they are (docs/wire-format.md)."""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fedpm.errors import WireError

MAGIC = b"FDPM"
VERSION = 2
READABLE = (1, 2)
"""Version 1 had no coded floats."""
_HEAD = struct.Struct("<4sBBBBQIIII")
_CRC = struct.Struct("<I")
OVERHEAD = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """Which way a message goes."""

    BROADCAST = 1
    UPLOAD = 2
    SCORES = 3
    SUM = 4


@dataclass(frozen=True)
class Message:
    """A frame's fields; ``form`` tells how the coded part is to be read.

    Norm statistics and trained parameters are float32, ``stats``; or ``floats``, coded for who knows nearly the same.
    """

    kind: Kind
    form: int
    fingerprint: int
    round: int
    client: int
    coded: bytes
    stats: npt.NDArray[np.float32]
    floats: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the message as sent."""
        floats = self.floats or self.stats.astype("<f4").tobytes()
        identity = (self.fingerprint, self.round, self.client)
        form, count = (1, len(floats)) if self.floats else (0, len(self.stats))
        head = _HEAD.pack(MAGIC, VERSION, self.kind, self.form, form, *identity, len(self.coded), count)
        return b"".join((head, _CRC.pack(_checksum(head, self.coded, floats)), self.coded, floats))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Message":
        """Parse a message; anything but an undamaged message of this version raises WireError."""
        if len(data) < OVERHEAD:
            raise WireError(f"message of {len(data)} bytes: shorter than the {OVERHEAD} of an empty one; it was cut")
        magic, version, kind, form, is_coded, fingerprint, round_, client, coded, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise WireError(f"message starts with {magic!r}: not a fedpm message, which starts with {MAGIC!r}")
        if version not in READABLE:
            wanted = " and ".join(map(str, READABLE))
            raise WireError(f"message has version {version}: this library reads {wanted}; upgrade the older end")
        whole = OVERHEAD + coded + (1 if is_coded else 4) * count
        if len(data) != whole:
            raise WireError(f"message of {len(data)} bytes claims {whole}: it was cut or padded")
        if _CRC.unpack_from(data, _HEAD.size)[0] != _checksum(data[: _HEAD.size], data[OVERHEAD:]):
            raise WireError("message fails its checksum: it was damaged on the way")
        if is_coded >= version or kind not in tuple(Kind):
            raise WireError(f"message of kind {kind} with floats of form {is_coded}: unknown to version {version}")
        end = OVERHEAD + coded
        if is_coded:
            none = np.zeros(0, np.float32)
            return cls(Kind(kind), form, fingerprint, round_, client, data[OVERHEAD:end], none, data[end:])
        values = np.frombuffer(data, "<f4", count, end).astype(np.float32)
        if not np.isfinite(values).all():
            raise WireError("norm statistics hold NaN or infinite values: the sender's training diverged")
        return cls(Kind(kind), form, fingerprint, round_, client, data[OVERHEAD:end], values)

    def expect(self, kind: Kind, fingerprint: int, round: int, client: int, stats: int) -> None:
        """Raise WireError if the message is not the one that is due, naming what differs."""
        wanted = {"kind": int(kind), "model": fingerprint, "round": round, "client": client, "statistics": stats}
        count = (stats or -1) if self.floats else len(self.stats)  # of coded ones the decoder knows
        identity = (int(self.kind), self.fingerprint, self.round, self.client, count)
        actual = dict(zip(wanted, identity, strict=True))
        wrong = [f"{name} {actual[name]} instead of {value}" for name, value in wanted.items() if actual[name] != value]
        if wrong:
            kinds = {"model": "wrong model", "round": "replay", "client": "wrong client"}
            fault = next((kinds[name] for name in kinds if actual[name] != wanted[name]), "garbage")
            raise WireError(f"message is of another exchange: {', '.join(wrong)}", fault)


def _checksum(*parts: bytes) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc
