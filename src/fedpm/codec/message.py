"""The frame of every message: 36 bytes around a body.

=======  ====  ==========================================================
offset   type  field
=======  ====  ==========================================================
0        4 s   magic ``FDPM``
4        u8    version of the format
5        u8    kind: 1 broadcast, 2 upload
6        u16   reserved, zero
8        u64   fingerprint of network and seed
16       u32   round
20       u32   client (broadcasts to all: 2³²−1)
24       u64   length of the body
32       u32   CRC-32 of all bytes but these four
36             body
=======  ====  ==========================================================
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from fedpm.errors import WireError

MAGIC = b"FDPM"
VERSION = 1
_HEAD = struct.Struct("<4sBBHQIIQ")
_CRC = struct.Struct("<I")
OVERHEAD = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """What a message carries."""

    BROADCAST = 1
    UPLOAD = 2


@dataclass(frozen=True)
class Message:
    """A frame's fields."""

    kind: Kind
    fingerprint: int
    round: int
    client: int
    body: bytes

    def to_bytes(self) -> bytes:
        """Return the message as sent."""
        head = _HEAD.pack(MAGIC, VERSION, self.kind, 0, self.fingerprint, self.round, self.client, len(self.body))
        return head + _CRC.pack(zlib.crc32(self.body, zlib.crc32(head))) + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> "Message":
        """Parse a message; anything but an undamaged message of this version raises WireError."""
        if len(data) < OVERHEAD:
            raise WireError(f"message of {len(data)} bytes: shorter than the {OVERHEAD} of an empty one; it was cut")
        magic, version, kind, reserved, fingerprint, round_, client, length = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise WireError(f"message starts with {magic!r}: not a fedpm message, which starts with {MAGIC!r}")
        if version != VERSION:
            raise WireError(
                f"message has version {version}: this library reads version {VERSION}; upgrade the older end"
            )
        body = data[OVERHEAD:]
        if length != len(body):
            raise WireError(f"message claims a body of {length} bytes and has {len(body)}: it was cut or padded")
        (crc,) = _CRC.unpack_from(data, _HEAD.size)
        if crc != zlib.crc32(body, zlib.crc32(data[: _HEAD.size])):
            raise WireError("message fails its checksum: it was damaged on the way")
        if reserved != 0 or kind not in list(Kind):
            raise WireError(f"message of kind {kind} with reserved field {reserved}: unknown to version {VERSION}")
        return cls(Kind(kind), fingerprint, round_, client, body)

    def expect(self, kind: Kind, fingerprint: int, round: int, client: int) -> "Message":
        """Return the message if it is the one that is due, otherwise raise WireError naming what differs."""
        wanted = {"kind": int(kind), "model": fingerprint, "round": round, "client": client}
        found = {
            "kind": int(self.kind),
            "model": self.fingerprint,
            "round": self.round,
            "client": self.client,
        }
        wrong = [
            f"{field} {found[field]} instead of {wanted[field]}" for field in wanted if found[field] != wanted[field]
        ]
        if wrong:
            raise WireError(f"message is of another exchange: {', '.join(wrong)}")
        return self
