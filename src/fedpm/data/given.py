"""Data as people have them: arrays, tensors, a torch ``Dataset``, a table, a .npz file, a folder of images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from fedpm.data.files import read_images, read_npz, read_table
from fedpm.data.lazy import Lazy, lazy
from fedpm.data.tables import Table, columns_of, in_order, is_frame, parted
from fedpm.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Examples:
    """Inputs and labels as they were given; of a table also the names of the inputs' columns."""

    x: Array | Lazy
    y: Array
    columns: tuple[str, ...] = ()


def examples(where: str, source: Any, label: str = "label", client: str | None = None) -> Examples:
    """Return inputs and labels of whatever holds them, checked; labels are not numbered yet.

    Args:
        where: whose they are; it begins the sentence of an error.
        source: ``(inputs, labels)`` as arrays, tensors or lists; a map-style torch ``Dataset``, read lazily; a pandas
            table, or its columns by name; or the path of a .csv, a .npz (members x and y), or a folder
            ``class/*.png``, read lazily.
        label: the column of a table that is the label.
        client: the column of a table that names clients, which is no input; None if there is none.
    """
    if isinstance(source, Examples):
        return source
    x, y, columns = _read(where, source, label, client)
    if not isinstance(x, Lazy):
        x = _inputs(where, x)
    labels = _array(f"{where}: labels", y)
    if labels.ndim and (len(x) != len(labels) or len(labels) == 0):
        raise DataError(
            f"{where}: {len(x)} inputs and {len(labels)} labels; there should be one label an input, at least one"
        )
    return Examples(x, labels, columns)


def agreed(given: Mapping[str, Examples]) -> tuple[dict[str, Examples], tuple[str, ...]]:
    """Return examples of one form, and the names of their columns; other forms than the first are refused.

    Tables are put in the order of the first one's columns. What has no names counts by position.
    """
    like = next((where for where, one in given.items() if one.columns), "")
    columns = given[like].columns if like else ()
    made = {where: replace(one, x=in_order(where, one.x, one.columns, columns, like)) for where, one in given.items()}
    first, x = next((where, one.x) for where, one in made.items())
    for where, other in ((where, one.x) for where, one in made.items()):
        if other.shape[1:] != x.shape[1:] or other.dtype != x.dtype:
            scaled = " (uint8 is scaled, other types are not)" if np.uint8 in (other.dtype, x.dtype) else ""
            raise DataError(
                f"{where}: an input is {other.dtype} of shape {other.shape[1:]}, and at {first} {x.dtype} of shape "
                f"{x.shape[1:]}; bring all to one form{scaled}"
            )
    return made, columns


def _read(where: str, source: Any, label: str, client: str | None) -> tuple[Any, Any, tuple[str, ...]]:
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".csv" and not Path(source).is_dir():
        source = read_table(where, Path(source))
    if isinstance(source, str | Path):
        return *_of_path(where, Path(source)), ()
    if is_frame(source):
        source = columns_of(where, source)
    if isinstance(source, Mapping):
        table = source if isinstance(source, Table) else Table(source)
        return parted(where, table if client is None else table.without(client), label)
    if isinstance(source, TensorDataset):
        source = source.tensors
    if isinstance(source, TorchDataset):
        return *_of_torch(where, source), ()
    if isinstance(source, tuple | list) and len(source) == 2:
        return source[0], source[1], ()
    if isinstance(source, float):
        raise DataError(
            f"{where}: {source} is a share, and only fedpm.federation takes one, as test= or validation=; here give "
            "(inputs, labels)"
        )
    raise DataError(
        f"{where}: {_described(source)} holds no examples; give (inputs, labels), a torch Dataset with a length, a "
        "table, or the path of a .csv, a .npz or a folder of images"
    )


def _described(source: Any) -> str:
    kind = type(source).__name__
    return f"a {kind} of {len(source)}" if isinstance(source, tuple | list) else f"a {kind}"


def _of_path(where: str, path: Path) -> tuple[Any, Any]:
    if path.is_dir():
        return read_images(where, path)
    if path.suffix.lower() == ".npz":
        return read_npz(where, path)
    raise DataError(f"{where}: {path} is neither a folder of images nor a .csv or .npz file; give one of these")


@dataclass(frozen=True)
class _Inputs:
    """Reads the input of one example of a torch Dataset."""

    dataset: Any
    where: str

    def __call__(self, number: int) -> Array:
        x = _array(f"{self.where}: input {number}", _example(self.where, self.dataset, number)[0])
        return _numbers(f"{self.where}: input {number} should be an array", x)


def _example(where: str, dataset: Any, number: int) -> Any:
    """Return an example of a torch Dataset, which may do anything to read it."""
    try:
        return dataset[number]
    except Exception as error:
        raise DataError(
            f"{where}: example {number} cannot be read ({type(error).__name__}: {error}); mend the Dataset, or leave "
            "it out"
        ) from error


def _of_torch(where: str, source: Any) -> tuple[Lazy, Array]:
    """Return inputs that are read when asked for; labels are read now, from ``targets`` if it has them."""
    if isinstance(source, IterableDataset) or not hasattr(source, "__len__"):
        raise DataError(f"{where}: {type(source).__name__} has no length; give a map-style Dataset, with __len__")
    if len(source) == 0:
        raise DataError(f"{where}: 0 examples; each client needs one, so leave it out")
    first = _example(where, source, 0)
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise DataError(f"{where}: example 0 is {_described(first)}; it should be (input, label)")
    labels = getattr(source, "targets", None)
    if labels is None or len(labels) != len(source) or getattr(source, "target_transform", None):
        labels = [_label(_example(where, source, number)[1]) for number in range(len(source))]
    return lazy(_Inputs(source, where), len(source), where), _array(f"{where}: labels", labels)


def _label(label: Any) -> Any:
    """Return a label of a torch Dataset, out of its tensor if it is in one."""
    if not hasattr(label, "item"):
        return label
    return label.item() if getattr(label, "ndim", 0) == 0 else np.asarray(label)


def _inputs(where: str, values: Any) -> Array:
    if np.ma.is_masked(values):
        raise DataError(f"{where}: inputs hold masked values; fill them or leave them out")
    x = _array(f"{where}: inputs", values)
    if x.ndim == 0:
        raise DataError(f"{where}: inputs should be an array of numbers, a row an input, and are one number alone")
    x = _numbers(f"{where}: inputs should be an array", x)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        first = tuple(np.argwhere(~np.isfinite(x))[0].tolist())
        raise DataError(
            f"{where}: inputs hold NaN or infinite values, the first ({x[first]}) in input {first[0]}; clean them first"
        )
    return x


def _numbers(what: str, x: Array) -> Array:
    """Return inputs as a network takes them, fractions and truth values as float32."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{what} of numbers, and are {x.dtype} of shape {x.shape}; encode them as numbers first")
    return x.astype(np.float32) if x.dtype.kind in "bf" else x


def _array(what: str, values: Any) -> Array:
    """Return an array of whatever numpy or torch can make one."""
    detach: Callable[[], Any] | None = getattr(values, "detach", None)
    try:
        tensor = detach().cpu() if detach else None
        if tensor is not None and tensor.dtype == torch.bfloat16:  # which numpy has not
            tensor = tensor.float()
        return np.asarray(values if tensor is None else tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = "differ in length" if "inhomogeneous" in str(error) else f"are no array ({str(error).splitlines()[0]})"
        raise DataError(f"{what} {reason}; bring all to one shape") from None
