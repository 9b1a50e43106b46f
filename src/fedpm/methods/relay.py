"""What broadcasts pass on as it was coded: uploads with their clients, and parts with their lengths."""

import struct

from fedpm.errors import WireError

UPLOAD = struct.Struct("<II")  # client, bytes
LENGTH = struct.Struct("<I")


def relay(client: int, coded: bytes) -> bytes:
    """Return a client's coded upload as a broadcast passes it on."""
    return UPLOAD.pack(client, len(coded)) + coded


def relayed(data: bytes) -> list[tuple[int, bytes]]:
    """Return the clients and their coded uploads, none of them decoded."""
    uploads, place = list[tuple[int, bytes]](), 0
    while place < len(data):
        if len(data) < place + UPLOAD.size:
            raise WireError("broadcast ends within a relayed upload: it was cut")
        client, size = UPLOAD.unpack_from(data, place)
        upload = data[place + UPLOAD.size : place + UPLOAD.size + size]
        if len(upload) < size:
            raise WireError(f"broadcast relays {len(upload)} of an upload's {size} bytes: it was cut")
        uploads.append((client, upload))
        place += UPLOAD.size + size
    return uploads


def join(parts: list[bytes]) -> bytes:
    """Return all parts as one, each after its length."""
    return b"".join(LENGTH.pack(len(part)) + part for part in parts)


def split(data: bytes, most: int) -> list[bytes]:
    """Return the parts that were joined, of which there may be ``most``."""
    parts, place = list[bytes](), 0
    while place < len(data):
        if len(parts) == most or len(data) < place + LENGTH.size:
            raise WireError(f"{len(data)} bytes do not hold 1 to {most} parts with their lengths: they are damaged")
        (size,) = LENGTH.unpack_from(data, place)
        parts.append(data[place + LENGTH.size : place + LENGTH.size + size])
        if len(parts[-1]) < size:
            raise WireError(f"a part has {len(parts[-1])} of its {size} bytes: it was cut")
        place += LENGTH.size + size
    return parts
