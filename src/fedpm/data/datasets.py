"""Data sets as arrays, in memory or read when they are asked for.

Images are kept as uint8 and scaled to [−1, 1] a batch at a time; inputs of any other type are used as they
are, floats as float32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpm.data.catalog import SPECS
from fedpm.data.given import agreed, examples
from fedpm.data.labels import numbered
from fedpm.data.lazy import Lazy
from fedpm.data.tables import in_order
from fedpm.errors import DataError, choices
from fedpm.files import absent
from fedpm.rng import Streams

Array = npt.NDArray[Any]
OWN = "own"
"""The name of data that nobody has given one."""
_PARTS = ("train", "test", "validation")  # the last is a federation's


@dataclass(frozen=True)
class Shard:
    """Inputs and their labels: the examples of a client, or a part of a data set."""

    x: Any
    """An array, or ``Lazy``, which is indexed like one."""
    y: Array
    """int64 for a class an example; else numbers or truth values, of any shape an example."""
    held: "Shard | None" = None
    """What a client does not train with, to score networks on."""

    def __repr__(self) -> str:
        return f"<fedpm.Shard: {len(self):,} examples, inputs {self.x.dtype} of shape {tuple(self.x.shape[1:])}>"

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: npt.NDArray[np.intp]) -> "Shard":
        """Return the chosen examples."""
        x = self.x.take(indices) if isinstance(self.x, Lazy) else self.x[indices]
        return Shard(x, self.y[indices])


@dataclass(frozen=True)
class Dataset:
    """A data set with its official train and test parts."""

    name: str
    train: Shard
    test: Shard
    classes: tuple[str, ...]
    """The names of the classes; where labels are none, of a network's outputs."""
    preprocessing: str = ""
    """How raw inputs were made into these, as a formula; empty if nothing was done."""
    columns: tuple[str, ...] = field(default=(), kw_only=True)
    """Of a table: the names of the inputs' columns, in their order."""
    named: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Of a table: the names of its columns ``label`` and ``client``."""

    def __repr__(self) -> str:
        clients = getattr(self, "clients", None)
        whose = "" if clients is None else f"{len(clients):,} client{'s' * (len(clients) != 1)}, "
        what = f"{len(self.classes)} classes" if self.labelled else f"labels {self.train.y.dtype}"
        counts = f"{len(self.train):,} examples to train on, {len(self.test):,} to test on"
        return f"<fedpm.{type(self).__name__}: {self.name}, {whose}{counts}, {what}>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.train.x.shape[1:])

    @property
    def called(self) -> str:
        """What sentences call the data."""
        return "your data" if self.name == OWN else self.name

    @property
    def labelled(self) -> bool:
        """Whether each example is of one class."""
        return self.train.y.ndim == 1 and self.train.y.dtype.kind == "i"

    def ordered(self, columns: Sequence[str], whose: str = "the given order") -> "Dataset":
        """Return the data of a table with the columns in this order, by their names; of arrays as they are."""
        if not self.columns or not columns:
            return self
        made = {
            part: replace(shard, x=in_order(self.called, shard.x, self.columns, columns, whose))
            for part in _PARTS
            if (shard := getattr(self, part, None)) is not None
        }
        return replace(self, **made, columns=tuple(columns))

    @property
    def counted(self) -> bool:
        """Whether nobody named the classes: labels are whole numbers, and may be quantities."""
        return self.train.y.dtype.kind in "iu" and self.classes == tuple(map(str, range(len(self.classes))))

    def as_numbers(self) -> "Dataset":
        """Return the data set with whole numbers as what a network gives itself, instead of as classes."""
        if not self.counted:
            return self
        shards = {part: shard for part in _PARTS if (shard := getattr(self, part, None)) is not None}
        labels, names = numbered({part: shard.y.astype(np.float32) for part, shard in shards.items()})
        made = {part: replace(shard, y=y) for (part, shard), y in zip(shards.items(), labels, strict=True)}
        return replace(self, **made, classes=names)

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
    train: Any,
    test: Any = None,
    *,
    classes: tuple[str, ...] | None = None,
    name: str = OWN,
    preprocessing: str = "",
    label: str = "label",
) -> Dataset:
    """Make a data set of your own, to be split over clients.

    Args:
        train: what is trained on: ``(inputs, labels)`` as arrays, tensors or lists; a torch ``Dataset`` with a length;
            a pandas table, or its columns by name; the path of a .csv, a .npz (x, y) or a folder ``class/*.png``.
        test: what is reported on, in any of these forms; it has to be given.
        classes: the names of the classes; without it those that occur.
        name: of the data, for reports.
        preprocessing: how raw inputs were made into these, as a formula.
        label: the column of a table that is the label.
    """
    if test is None:
        raise DataError(
            "test: there should be something to report on, that no client trains with; give fedpm.dataset(train=…, "
            "test=(inputs, labels)), or let fedpm.federation([…], test=0.1) cut off a share"
        )
    sources = {"train": train, "test": test}
    given, columns = agreed({where: examples(where, source, label) for where, source in sources.items()})
    labels, names = numbered({where: one.y for where, one in given.items()}, classes)
    train, test = (Shard(one.x, y) for one, y in zip(given.values(), labels, strict=True))
    done, named = preprocessing_of(train, preprocessing), {"label": label} if columns else {}
    return Dataset(name, train, test, names, done, columns=columns, named=named)


def preprocessing_of(shard: Shard, said: str) -> str:
    """Return what is done to inputs, as a formula: by ``to_input``, or what the caller says was done before."""
    return "x / 127.5 - 1" if shard.x.dtype == np.uint8 else said


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
    from fedpm.data import official

    return official.public(name, data_dir)


def reuters(data_dir: Path | str | None = None) -> Dataset:
    """Return the articles of Reuters-21578 with one of eight topics, as token numbers."""
    from fedpm.data import texts

    return texts.reuters(data_dir)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    **{name: partial(public, name) for name, spec in SPECS.items() if spec.classes and len(spec.shape) == 3},
    "reuters": reuters,
}
"""What loads each data set that has a name, from a data folder (default: the usual one)."""


def load_dataset(
    name: Path | str, data_dir: Path | str | None = None, *, label: str | None = None, client: str | None = None
) -> Dataset:
    """Return a data set by its name or path; ``label`` and ``client`` are columns of a table, if called otherwise."""
    if name in DATASETS:
        return DATASETS[str(name)](data_dir)
    if not Path(name).exists():
        if Path(name).suffix or Path(name).parent != Path():
            raise DataError(f"{name}: {absent(Path(name))}")
        raise DataError(f"{name}: neither a folder, a file nor a data set; {choices(str(name), DATASETS)}")
    from fedpm.data.paths import of_path

    return of_path(Path(name), label=label, client=client)


def to_input(x: Array, device: torch.device) -> torch.Tensor:
    """Return a batch as the network takes it: images scaled to [−1, 1]."""
    batch = _tensor(x).to(device)
    return batch.to(torch.float32).div_(127.5).sub_(1) if batch.dtype == torch.uint8 else batch


def to_target(y: Array, device: torch.device) -> torch.Tensor:
    """Return the targets of a batch as a loss takes them: whole numbers as int64, all others as float32."""
    return _tensor(y).to(device, torch.int64 if y.dtype.kind in "iu" else torch.float32)


def _tensor(values: Array) -> torch.Tensor:
    """Return an array as a tensor; torch warns of one that nobody may write to, such as a file in memory."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
