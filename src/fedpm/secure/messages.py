"""The messages of a secure sum: a head of 36 bytes and a body, most of them records of one size each."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from fedpm.errors import WireError
from fedpm.secure.session import Session
from fedpm.secure.shamir import SHARE

MAGIC = b"FDSA"
VERSION = 1
_HEAD = struct.Struct("<4sBBH16sII")
_CRC = struct.Struct("<I")
OVERHEAD = _HEAD.size + _CRC.size
SIGNATURE = 132
"""Bytes of a signature on any NIST curve up to P-521, zeros where none was asked for."""
SEALED = 2 * SHARE + 16
"""Bytes of two shares, encrypted, and of the tag that authenticates them."""


class Stage(IntEnum):
    """The messages in their order; a client sends those with odd numbers."""

    ADVERTISE = 1
    KEYS = 2
    SHARES = 3
    DELIVERY = 4
    MASKED = 5
    REQUEST = 6
    REVEAL = 7


class Secret(IntEnum):
    """Which of a client's two secrets: that of its own pad, if it stayed, or that of its pads with others."""

    SEED = 1
    KEY = 2


@dataclass(frozen=True)
class Advert:
    """A client's public keys for pads and for shares, a hash of its own pad's seed, and its signature of these."""

    pads: bytes
    shares: bytes
    commitment: bytes
    signature: bytes = bytes(SIGNATURE)

    @property
    def signed(self) -> bytes:
        """What the signature is of, beside session and client."""
        return self.pads + self.shares + self.commitment


def frame(session: Session, stage: Stage, client: int, body: bytes) -> bytes:
    """Return a message from or to a client."""
    head = _HEAD.pack(MAGIC, VERSION, stage, 0, session.digest, client, len(body))
    return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


def unframe(session: Session, stage: Stage, client: int, data: bytes) -> bytes:
    """Return the body of the message that is due; anything else raises WireError."""
    if len(data) < OVERHEAD:
        raise WireError(f"message of {len(data)} bytes: shorter than the {OVERHEAD} of an empty one; it was cut")
    magic, version, number, zero, digest, sender, size = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero:
        raise WireError(f"message starts with {data[:8]!r}: not one of a secure sum of version {VERSION}")
    if len(data) != OVERHEAD + size:
        raise WireError(f"message of {len(data)} bytes claims {OVERHEAD + size}: it was cut or padded")
    if _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[OVERHEAD:], zlib.crc32(data[: _HEAD.size])):
        raise WireError("message fails its checksum: it was damaged on the way")
    if digest != session.digest:
        raise WireError("message is of another secure sum: of another round, or other clients were named", "replay")
    if sender != client:
        raise WireError(f"message is of client {sender} instead of {client}", "wrong client")
    if number != stage:
        raise WireError(f"message is of stage {number} instead of {int(stage)} ({stage.name.lower()})", "replay")
    return data[OVERHEAD:]


def pack_advert(advert: Advert) -> bytes:
    """Return a client's advertisement as a body."""
    return advert.signed + advert.signature


def unpack_advert(body: bytes) -> Advert:
    """Parse a client's advertisement."""
    if len(body) != 96 + SIGNATURE:
        raise WireError(f"advertisement of {len(body)} bytes instead of {96 + SIGNATURE}")
    return Advert(body[:32], body[32:64], body[64:96], body[96:])


def pack_records(records: Mapping[int, bytes]) -> bytes:
    """Return records by client as a body, in ascending order."""
    return b"".join(struct.pack("<I", client) + records[client] for client in sorted(records))


def unpack_records(body: bytes, size: int) -> dict[int, bytes]:
    """Parse records of ``size`` bytes; each client has at most one."""
    if len(body) % (4 + size):
        raise WireError(f"body of {len(body)} bytes is not made of records of {4 + size}")
    records: dict[int, bytes] = {}
    last = -1
    for client, record in struct.iter_unpack(f"<I{size}s", body):
        if client == last:
            raise WireError(f"two records of client {client}: there is one for each, as one secret of each may be told")
        if client < last:
            raise WireError(f"record of client {client} after that of {last}: they ascend")
        records[client], last = record, client
    return records


def unpack_choice(record: bytes) -> Secret:
    """Parse which secret a record is of."""
    if record[0] not in (Secret.SEED, Secret.KEY):
        raise WireError(f"secret of kind {record[0]}: there are {int(Secret.SEED)} and {int(Secret.KEY)}")
    return Secret(record[0])
