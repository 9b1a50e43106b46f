"""Data sets as arrays in memory.

Images are kept as uint8 and scaled to [−1, 1] a batch at a time; inputs of any other type are used as they
are, floats as float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpm.data import local
from fedpm.data.catalog import SPECS
from fedpm.data.folder import read_folder
from fedpm.data.formats import decode
from fedpm.errors import DataError
from fedpm.rng import Streams

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """Inputs and their labels: the examples of a client, or a part of a data set."""

    x: Array
    y: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: npt.NDArray[np.intp]) -> "Shard":
        """Return the chosen examples."""
        return Shard(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class Dataset:
    """A classification data set with its official train and test parts."""

    name: str
    train: Shard
    test: Shard
    classes: tuple[str, ...]
    preprocessing: str = ""
    """How raw inputs were made into these, as a formula; empty if nothing was done."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.train.x.shape[1:])

    def channel_statistics(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel of the training inputs; images count in [0, 1]."""
        x = self.train.x
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        channels = [x] if x.ndim < 3 else [x[:, channel] for channel in range(x.shape[1])]
        return [float(c.mean(dtype=np.float64) / scale) for c in channels], [
            float(c.std(dtype=np.float64) / scale) for c in channels
        ]

    def limited(self, examples: int | None, seed: int, test_examples: int | None = None) -> "Dataset":
        """Return the data set with only so many examples to train and to test on, drawn by the seed."""
        train = self._drawn("train", self.train, examples, seed)
        return replace(self, train=train, test=self._drawn("test", self.test, test_examples, seed))

    def _drawn(self, part: str, shard: Shard, examples: int | None, seed: int) -> Shard:
        if examples is None:
            return shard
        if examples > len(shard):
            raise DataError(
                f"data.{part}_examples = {examples}: {self.name} has only {len(shard)} of them to {part} on; "
                "ask for at most that many"
            )
        return shard.take(Streams(seed).permutation(f"{part} examples", len(shard))[:examples])

    def holding_out(self, share: float, seed: int) -> tuple[Shard, Shard]:
        """Return the training part without, and only, the validation examples."""
        count = round(share * len(self.train))
        if not 0 < count < len(self.train):
            raise DataError(
                f"data.validation = {share} of {len(self.train)} training examples leaves nothing to choose on or to "
                "train with; use more examples or another share"
            )
        order = Streams(seed).permutation("validation", len(self.train))
        return self.train.take(np.sort(order[count:])), self.train.take(np.sort(order[:count]))


def dataset(
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    classes: tuple[str, ...] | None = None,
    name: str = "own",
    preprocessing: str = "",
) -> Dataset:
    """Make a data set of your own arrays or tensors: ``(inputs, labels)`` to train and to test on."""
    parts = [_shard(part, pair) for part, pair in (("train", train), ("test", test))]
    top = max(int(part.y.max()) for part in parts) + 1
    names = classes or tuple(str(label) for label in range(top))
    if top > len(names):
        raise DataError(f"{name}: a label is {top - 1}, but {len(names)} classes are named; labels start at 0")
    if parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise DataError(
            f"{name}: train inputs have shape {parts[0].x.shape[1:]}, test inputs {parts[1].x.shape[1:]}; "
            "they should agree"
        )
    if parts[0].x.dtype == np.uint8:
        preprocessing = "x / 127.5 - 1"  # by to_input
    return Dataset(name, parts[0], parts[1], names, preprocessing)


def _shard(part: str, pair: tuple[Any, Any]) -> Shard:
    x, y = (np.asarray(values) for values in pair)
    if x.ndim and y.ndim and (len(x) != len(y) or len(y) == 0):
        raise DataError(
            f"{part}: {len(x)} inputs and {len(y)} labels; there should be one label an input, at least one"
        )
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or int(y.min()) < 0:
        raise DataError(f"{part}: labels should be a row of integers from 0, and are {y.dtype} of shape {y.shape}")
    if x.ndim == 0 or not np.issubdtype(x.dtype, np.number):
        raise DataError(f"{part}: inputs should be an array of numbers, and are {x.dtype} of shape {x.shape}")
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{part}: inputs hold NaN or infinite values; clean them first")
    return Shard(x, y.astype(np.int64))


def digits(data_dir: Path | str | None = None) -> Dataset:
    """Return the 1,797 handwritten digits of 8×8 pixels that scikit-learn has too; every fifth is a test example.

    They come with this package: ``data_dir`` is there for the sake of one signature, and not looked at.
    """
    with resources.as_file(resources.files("fedpm.data") / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, labels = table[:, :64], table[:, 64]
    x = (images.reshape(-1, 1, 8, 8) / 16 - 0.5).astype(np.float32) / 0.5
    test = np.arange(len(labels)) % 5 == 4
    train, held_out = (x[~test], labels[~test]), (x[test], labels[test])
    return dataset(train, held_out, name="digits", preprocessing="x / 8 - 1")


def public(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Return a public data set from the files in a data folder; images are uint8 (N, C, H, W)."""
    contents = local.read(name, data_dir)
    spec = contents.location.spec
    train, test = decode(spec, contents.files)
    title = spec.title
    if not contents.official:
        checkable = bool(spec.sha256) or (len(train[1]), len(test[1])) != spec.counts
        title += " (derived: not the official files)" if checkable else " (not verified: gzip.zip is not at hand)"
    return dataset(train, test, classes=spec.classes, name=title)


def folder(path: Path | str) -> Dataset:
    """Return the data set of your own in a folder of .npy or .npz arrays; see ``fedpm.data.folder``."""
    arrays, classes = read_folder(Path(path))
    return dataset(
        (arrays["train_x"], arrays["train_y"]),
        (arrays["test_x"], arrays["test_y"]),
        classes=classes,
        name=Path(path).resolve().name,
    )


DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits, **{name: partial(public, name) for name in SPECS}}
"""What loads each data set that has a name, from a data folder (default: the usual one)."""


def load_dataset(name: Path | str, data_dir: Path | str | None = None) -> Dataset:
    """Return a data set as arrays in memory: by its name, or by the folder that holds arrays of your own."""
    if name in DATASETS:
        return DATASETS[str(name)](data_dir)
    if not Path(name).is_dir():
        raise DataError(f"{name}: neither a folder nor a data set; there are: {', '.join(DATASETS)}")
    return folder(name)


def to_input(x: Array, device: torch.device) -> torch.Tensor:
    """Return a batch as the network takes it: images scaled to [−1, 1], channels last in memory."""
    batch = torch.from_numpy(x).to(device)
    if batch.dtype == torch.uint8:
        batch = batch.to(torch.float32).div_(127.5).sub_(1)
    return batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 else batch
