"""The networks that have a name, with the values of those that are pretrained, from the data folder."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedpm.data import local
from fedpm.errors import DataError
from fedpm.model import nets
from fedpm.model.variants import VARIANTS, variant


@dataclass(frozen=True)
class Named:
    """A network, and what of it is frozen or trained as floats unless somebody says otherwise."""

    net: nn.Module
    frozen: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()


def named(name: str, input_shape: tuple[int, ...], classes: int, data_dir: Path | str | None = None) -> Named:
    """Return a network by its name; a pretrained one is got with ``fedpm data get``, and checked."""
    if name not in VARIANTS:
        return Named(nets.build(name, input_shape, classes))
    chosen = VARIANTS[name]
    found = local.read(chosen.base.data, data_dir)
    if not found.official:
        raise DataError(
            f"{found.location.path}: {chosen.base.file} does not hold the published values (wrong checksum); move it "
            f"elsewhere and run fedpm data get {chosen.base.data}"
        )
    published = chosen.base.read(found.files[chosen.base.file])
    return Named(variant(name, classes, published), chosen.frozen, chosen.trained)
