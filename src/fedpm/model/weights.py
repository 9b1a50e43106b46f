"""Trained networks as ordinary float32 weights, and reading whichever model a run left."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from fedpm.errors import ArtifactError, ConfigError
from fedpm.files import unreadable, write_atomically
from fedpm.model import nets
from fedpm.model.file import MAX_PARAMETERS, Model
from fedpm.model.kinds import check_network


class WeightsHeader(BaseModel):
    """What the file says about itself; ``network`` is None for a network of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    network: str | None
    parameters: int = Field(gt=0, le=MAX_PARAMETERS)
    input_shape: tuple[int, ...]
    input_dtype: str = Field(pattern="^(float32|int64)$")
    classes: tuple[str, ...]
    preprocessing: str
    provenance: dict[str, Any]

    def metadata(self) -> dict[str, str]:
        """Return it as formats for weights hold words about them."""
        return {"fedpm": self.model_dump_json()}


@dataclass(frozen=True)
class Weights:
    """A trained network as a state dict of float32 in a safetensors file, with a header among its metadata."""

    name: ClassVar[str] = "model.safetensors"
    """What a run calls it."""
    header: WeightsHeader
    state: dict[str, torch.Tensor]

    @classmethod
    def of(cls, trained: nn.Module, **about: Any) -> "Weights":
        """Take the weights of a network; ``about`` are the fields of the header."""
        state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in trained.state_dict().items()}
        return cls(WeightsHeader(**about), state)

    def __repr__(self) -> str:
        about = self.header
        return f"<fedpm.Weights: {about.network or 'your own network'}, {about.parameters:,} parameters>"

    def to_bytes(self) -> bytes:
        """Return the file's bytes, the same for the same network."""
        return save(self.state, self.header.metadata())

    def save(self, path: Path | str) -> None:
        """Write the file, whole or not at all; one of that name is replaced."""
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def open(cls, path: Path | str) -> "Weights":
        """Read a file."""
        try:
            with safe_open(path, "pt") as file:
                header = (file.metadata() or {}).get("fedpm", "")
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
            return cls(WeightsHeader.model_validate_json(header), state)
        except OSError as error:
            raise ArtifactError(unreadable(path, error)) from None
        except SafetensorError as error:
            raise ArtifactError(f"{path}: not a safetensors file, or cut or damaged ({error})") from None
        except ValidationError:
            raise ArtifactError(
                f"{path}: these weights do not say which network they are of; only those that fedpm wrote do"
            ) from None

    def module(self, net: nn.Module | None = None, *, packed: bool = False) -> nn.Module:
        """Return the trained network in eval mode; a network of your own must be given."""
        if packed:
            raise ConfigError("weights cannot be packed: 2 bits a weight are enough only for a mask")
        net = self._named_network() if net is None else copy.deepcopy(net)
        values = {name: tensor.clone() for name, tensor in self.state.items()}
        once: dict[int, nn.Parameter] = {}  # layers that share a parameter share it again
        for name, parameter in net.named_parameters(remove_duplicate=False):
            if name in values:
                values[name] = once.setdefault(id(parameter), nn.Parameter(values[name]))
        try:
            net.load_state_dict(values, assign=True)
        except RuntimeError as error:
            first, *_, last = str(error).splitlines()
            raise ArtifactError(f"these weights are of another network: {first} {last.strip()}") from None
        return net.requires_grad_(False).eval()

    def _named_network(self) -> nn.Module:
        """Return the built-in network without memory for its weights."""
        header = self.header
        if header.network is None:
            raise ArtifactError("this model is of a network of your own: load it with load(path, net=YourNetwork())")
        try:
            with torch.device("meta"):
                return nets.build(header.network, header.input_shape, len(header.classes))
        except (ConfigError, KeyError, ValueError, RuntimeError, TypeError, OverflowError) as error:
            raise ArtifactError(f"the model's network {header.network!r} cannot be built: {error}") from None


def open_model(path: Path | str) -> Model | Weights:
    """Read a model file, of a mask or of weights, or that of a run folder."""
    path = Path(path)
    if path.is_dir():
        files = [path / kind.name for kind in (Model, Weights)]
        path = next((file for file in files if file.is_file()), path)
        if path.is_dir():
            below = sorted(file.parent.name for kind in (Model, Weights) for file in path.glob(f"*/{kind.name}"))
            remedy = f"give a run in it, such as {path / below[0]}" if below else "a run writes it when it ends"
            raise ArtifactError(f"{path}: holds no {Model.name} or {Weights.name}; {remedy}")
    return Weights.open(path) if path.suffix == ".safetensors" else Model.open(path)


def columns_of(model: Model | Weights) -> tuple[str, ...]:
    """Return the names of the columns that the network takes, none if the file tells none."""
    names = model.header.provenance.get("columns")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def named_of(model: Model | Weights) -> dict[str, str]:
    """Return the names of the columns ``label`` and ``client`` that the file tells."""
    told = {key: model.header.provenance.get(key) for key in ("label", "client")}
    return {key: name for key, name in told.items() if isinstance(name, str)}


def load(path: Path | str, net: nn.Module | None = None, *, packed: bool = False) -> nn.Module:
    """Return the trained network of a model file or a run folder as an ordinary module in eval mode.

    Args:
        path: the model file, of a mask or of weights, or the run folder.
        net: your network, if the model is of one of your own; its values do not matter, only its form.
        packed: keep 2 bits a weight in memory and unpack a layer whenever it is called; for masks.
    """
    check_network(net)
    return open_model(path).module(net, packed=packed)
