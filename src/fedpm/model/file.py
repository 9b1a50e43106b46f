"""The model file: a seed, a coded mask, and what is needed to rebuild and trust the network (docs/model-format.md)."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from torch import nn

from fedpm.errors import ArtifactError, ConfigError, DataError, WireError
from fedpm.files import unreadable, write_atomically
from fedpm.model import nets
from fedpm.model.kinds import first_difference, lacking
from fedpm.model.mask_coding import SIGNS, decode_final, encode_final, fewest_bytes
from fedpm.model.masking import MaskedNetwork
from fedpm.model.pretrained import named
from fedpm.model.ternary import pack
from fedpm.wire.masks import Mask, Signs
from fedpm.wire.theta import Vector

MAGIC = b"FEDPMODL"
VERSION = 4
READABLE = (1, 2, 3, 4)
"""Version 1 had no trained parameters, version 2 no given weights, and version 3 no start of which units sum to 0."""
MAX_HEADER = 2**20
MAX_PARAMETERS = 2**30
_HEAD = struct.Struct("<8sIIII")
_CRC = struct.Struct("<I")
_OTHER = "this model is of another network than the one given"


class Base(BaseModel):
    """The pretrained network that a mask is of: its values are not in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Header(BaseModel):
    """What the file says about itself; ``network`` is None for a network of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seed: int = Field(ge=0, lt=2**63)
    init: str = Field(pattern="^(kaiming|e|half|zero-sum)$")
    network: str | None
    architecture: str
    parameters: int = Field(gt=0, le=MAX_PARAMETERS)
    scheme: int
    input_shape: tuple[int, ...]
    input_dtype: str = Field(pattern="^(float32|int64)$")
    classes: tuple[str, ...]
    preprocessing: str
    frozen: tuple[str, ...]
    trained: tuple[str, ...] = ()
    base: Base | None = None
    provenance: dict[str, Any]

    @property
    def weights(self) -> str:
        """Where the values under the mask come from."""
        return "random" if self.base is None else "given"


@dataclass(frozen=True)
class Model:
    """A trained model as it is shipped: header, coded mask, and named tensors that the mask cannot give."""

    name: ClassVar[str] = "model.fedpm"
    """What a run calls it."""
    header: Header
    coded_mask: bytes
    tensors: dict[str, np.ndarray[Any, Any]]

    @classmethod
    def make(cls, masked: MaskedNetwork, mask: npt.NDArray[Any], stats: Vector, *, seed: int, **about: Any) -> "Model":
        """Code a mask, of int8 one of signs; ``about`` are the remaining fields of the header."""
        scheme, coded = encode_final(mask, masked, seed)
        tensors = masked.stats_views(torch.from_numpy(stats))
        if masked.base is None:  # who has a base has what is frozen in it
            tensors |= masked.constants
        header = Header(
            seed=seed,
            init=masked.init,
            architecture=masked.describe(),
            parameters=masked.size,
            scheme=scheme,
            frozen=masked.frozen,
            trained=masked.trained,
            base=_base(masked, about["network"]),
            **about,
        )
        return cls(header, coded, {name: tensor.cpu().numpy() for name, tensor in tensors.items()})

    def __repr__(self) -> str:
        about, name = self.header, self.header.network or "your own network"
        return f"<fedpm.Model: {name}, {about.parameters:,} parameters, seed {about.seed}>"

    def to_bytes(self) -> bytes:
        """Return the file's bytes, the same for the same model."""
        header = self.header.model_dump_json().encode()
        tensors = save_tensors(self.tensors) if self.tensors else b""
        sizes = (len(header), len(self.coded_mask), len(tensors))
        data = b"".join((_HEAD.pack(MAGIC, VERSION, *sizes), header, self.coded_mask, tensors))
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Model":
        """Parse a file's bytes, or raise ArtifactError."""
        if len(data) < _HEAD.size + _CRC.size or not data.startswith(MAGIC):
            raise ArtifactError(f"not a fedpm model file: should start with {MAGIC!r}, starts with {data[:8]!r}")
        _, version, header_size, mask_size, tensors_size = _HEAD.unpack_from(data)
        if version not in READABLE:
            wanted = f"{READABLE[0]} to {READABLE[-1]}"
            raise ArtifactError(f"model file of version {version}: this library reads {wanted}; upgrade it")
        mask_at = _HEAD.size + header_size
        tensors_at = mask_at + mask_size
        if len(data) != tensors_at + tensors_size + _CRC.size or header_size > MAX_HEADER:
            raise ArtifactError(
                "model file claims parts that do not fit its size: it was cut or damaged; copy it again"
            )
        if _CRC.unpack(data[-_CRC.size :])[0] != zlib.crc32(data[: -_CRC.size]):
            raise ArtifactError("model file fails its checksum: it was damaged; copy it again")
        header = _header(data[_HEAD.size : mask_at])
        return cls(header, data[mask_at:tensors_at], _tensors(data[tensors_at : -_CRC.size]))

    @classmethod
    def open(cls, path: Path | str) -> "Model":
        """Read a file."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise ArtifactError(unreadable(path, error)) from None
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from None

    def save(self, path: Path | str) -> None:
        """Write the file, whole or not at all; one of that name is replaced."""
        write_atomically(Path(path), self.to_bytes())

    def masked(self, net: nn.Module | None = None) -> MaskedNetwork:
        """Return the network that the mask is for, checked against the file; one of your own must be given.

        A mask over a pretrained network needs that very one, with its values.
        """
        header = self.header
        if net is None:
            net = self._named_network()
        kinds: dict[str, Any] = {"frozen": header.frozen, "trained": header.trained, "masked": "*"}
        try:
            masked = MaskedNetwork(net, init=header.init, weights=header.weights, **kinds)
        except ConfigError as error:  # the kinds are the file's
            raise ArtifactError(f"{_OTHER}: {lacking(net, (*header.frozen, *header.trained)) or error}") from None
        if masked.describe() != header.architecture:
            raise ArtifactError(f"{_OTHER}: {first_difference(header.architecture, masked.describe())}")
        if header.base is not None and masked.base != header.base.sha256:
            raise ArtifactError(
                f"this model is a mask over {header.base.name} with SHA-256 {header.base.sha256}, and the network "
                f"given has other values, {masked.base}: load it with the base that it was trained on"
            )
        constants = {} if header.base else {name: tuple(value.shape) for name, value in masked.constants.items()}
        expected = {**masked.stats, **constants}
        if masked.size != header.parameters or expected != {n: t.shape for n, t in self.tensors.items()}:
            raise ArtifactError("the model file's parameters and tensors are not those of its network: it is damaged")
        return masked

    def _named_network(self) -> nn.Module:
        """Return the built-in network; its size is checked before memory is taken for it."""
        header = self.header
        if header.network is None:
            base = f", and a mask over its values ({header.base.name})" if header.base else ""
            raise ArtifactError(
                f"this model is of a network of your own{base}: load it with load(path, net=YourNetwork())"
            )
        if header.base is not None:  # whose values are here already, and limit what it takes
            try:
                return named(header.network, header.input_shape, len(header.classes)).net
            except (DataError, ConfigError, KeyError) as error:
                raise ArtifactError(f"the base {header.base.name!r} of this model cannot be had: {error}") from None
        if len(self.coded_mask) < fewest_bytes(header.parameters):
            raise ArtifactError(
                f"model file of {header.parameters} parameters with a mask of {len(self.coded_mask)} bytes: it should "
                f"have {fewest_bytes(header.parameters)} at least, so it may be made to fill the memory; if you trust "
                "it, load it with load(path, net=YourNetwork())"
            )
        try:
            with torch.device("meta"):
                empty = nets.build(header.network, header.input_shape, len(header.classes))
        except (ConfigError, KeyError, ValueError, RuntimeError, TypeError, OverflowError) as error:
            raise ArtifactError(f"the model file's network {header.network!r} cannot be built: {error}") from None
        count = sum(parameter.numel() for parameter in empty.parameters())
        if count != header.parameters:
            raise ArtifactError(f"model file claims {header.parameters} parameters, its network has {count}: damaged")
        return nets.build(header.network, header.input_shape, len(header.classes))

    def mask(self, masked: MaskedNetwork) -> Mask | Signs:
        """Return the decoded mask."""
        try:
            return decode_final(self.header.scheme, self.coded_mask, masked, self.header.seed)
        except WireError as error:
            raise ArtifactError(f"the model file's mask cannot be decoded: {error}") from None

    def module(self, net: nn.Module | None = None, *, packed: bool = False) -> nn.Module:
        """Return the trained network in eval mode; a network of your own must be given.

        ``packed`` keeps 2 bits a weight in memory and unpacks a layer whenever it is called.
        """
        masked = self.masked(net)
        signs, seed = self.header.scheme == SIGNS, self.header.seed
        if signs and packed:
            raise ConfigError("signs over weights of many sizes cannot be packed: 2 bits a weight are not enough")
        mask = torch.from_numpy(self.mask(masked))
        frozen = torch.from_numpy(masked.dense_weights(seed)) if signs else masked.weights(seed)
        weights = (frozen * mask).where(mask.bool(), 0.0)  # no zero has a sign
        stats = np.concatenate([np.zeros(0, np.float32), *(self.tensors[name].ravel() for name in masked.stats)])
        constants = {name: torch.from_numpy(self.tensors[name]) for name in masked.constants if name in self.tensors}
        module = masked.module(weights, stats, constants)
        return pack(module, masked) if packed else module


def _base(masked: MaskedNetwork, name: str | None) -> Base | None:
    return None if masked.base is None else Base(name=name or type(masked.net).__name__, sha256=masked.base)


def _header(data: bytes) -> Header:
    try:
        return Header.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"model file has a wrong header ({where or 'whole'}: {first['msg']}): damaged") from None


def _tensors(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    try:
        return load_tensors(data) if data else {}
    except (SafetensorError, ValueError, KeyError, AttributeError) as error:
        raise ArtifactError(f"model file has damaged tensors ({error})") from None
