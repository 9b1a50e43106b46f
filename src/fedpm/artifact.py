"""The model file: a seed, a coded mask, and what is needed to rebuild and trust the network.

Layout: magic ``FEDPMODL``, u32 version, u32 header length, u32 mask length, JSON header, coded mask, float32
norm statistics, CRC-32 of all before.
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpm import nets
from fedpm.codec.masks import Frequency, Mask
from fedpm.errors import ArtifactError, WireError
from fedpm.files import write_atomically
from fedpm.masking import MaskedNetwork, Vector

MAGIC = b"FEDPMODL"
VERSION = 1
_HEAD = struct.Struct("<8sIII")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class Header:
    """What the file says about itself; ``network`` is None for a network of the user's own."""

    seed: int
    init: str
    fingerprint: int
    network: str | None
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A trained model as it is shipped."""

    header: Header
    coded_mask: bytes
    stats: Vector

    @classmethod
    def make(cls, header: Header, mask: Mask, stats: Vector) -> "Model":
        """Code a mask."""
        return cls(header, Frequency().encode_mask(mask).data, stats)

    def to_bytes(self) -> bytes:
        """Return the file's bytes, the same for the same model."""
        header = json.dumps(asdict(self.header), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        data = _HEAD.pack(MAGIC, VERSION, len(header), len(self.coded_mask)) + header + self.coded_mask
        data += self.stats.astype("<f4").tobytes()
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Model":
        """Parse a file's bytes, or raise ArtifactError."""
        if len(data) < _HEAD.size + _CRC.size or not data.startswith(MAGIC):
            raise ArtifactError(f"not a fedpm model file: should start with {MAGIC!r}, starts with {data[:8]!r}")
        _, version, header_size, mask_size = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ArtifactError(f"model file of version {version}: this library reads version {VERSION}; upgrade it")
        if _CRC.unpack(data[-_CRC.size :])[0] != zlib.crc32(data[: -_CRC.size]):
            raise ArtifactError("model file fails its checksum: it was cut or damaged; copy it again")
        mask_at = _HEAD.size + header_size
        stats_at = mask_at + mask_size
        stats_bytes = data[stats_at : -_CRC.size]
        if len(data) - _CRC.size < stats_at or len(stats_bytes) % 4:
            raise ArtifactError("model file claims parts that do not fit its size: it is damaged")
        try:
            fields = json.loads(data[_HEAD.size : mask_at])
            for name in ("input_shape", "classes", "frozen"):
                fields[name] = tuple(fields[name])
            header = Header(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArtifactError("model file has a header that cannot be understood: it is damaged") from None
        return cls(header, data[mask_at:stats_at], np.frombuffer(stats_bytes, "<f4").astype(np.float32))

    def module(self, net: nn.Module | None = None) -> nn.Module:
        """Return the trained network in eval mode; a network of your own must be given."""
        header = self.header
        if net is None:
            if header.network is None:
                raise ArtifactError(
                    "this model is of a network of your own: load it with load(path, net=YourNetwork())"
                )
            net = nets.build(header.network, header.input_shape, len(header.classes))
        masked = MaskedNetwork(net, init=header.init, frozen=header.frozen)
        if masked.fingerprint(header.seed) != header.fingerprint:
            raise ArtifactError(f"this model is of another network than the one given, which is:\n{masked.describe()}")
        if len(self.stats) != masked.stats_size:
            raise ArtifactError(f"model file holds {len(self.stats)} norm statistics, the network {masked.stats_size}")
        try:
            mask = Frequency().decode_mask(self.coded_mask, masked.size)
        except WireError as error:
            raise ArtifactError(f"the model file's mask cannot be decoded: {error}") from None
        return masked.module(torch.from_numpy(mask) * masked.weights(header.seed), self.stats)

    def save(self, path: Path | str) -> None:
        """Write the file, whole or not at all."""
        write_atomically(Path(path), self.to_bytes())


def load(path: Path | str, net: nn.Module | None = None) -> nn.Module:
    """Return the trained network of a model file as an ordinary module in eval mode."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot read this file ({error.strerror})") from None
    return Model.from_bytes(data).module(net)
