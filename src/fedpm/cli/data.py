"""``fedpm data``: list, get and show data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedpm.cli.options import Client, Label, complete_data
from fedpm.cli.parsing import Group
from fedpm.cli.progress import fetch_progress
from fedpm.errors import ConfigError, StoppedError, choices, printable, require

if TYPE_CHECKING:
    from fedpm.data.datasets import Dataset, Shard
    from fedpm.data.partition import Indices

app = typer.Typer(name="data", cls=Group, help="Data sets: what there is, get one, look at one.", no_args_is_help=True)
console = Console(soft_wrap=True, highlight=False, markup=False)
_MOST = 8  # channels or columns that are listed one by one

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the files (default: FEDPM_DATA, else fedpm in the cache folder).")
]
Name = Annotated[str, typer.Argument(help="One of those that fedpm data list shows.", autocompletion=complete_data)]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """What there is, how large it is, and whether it is here."""
    from fedpm.data.catalog import SPECS
    from fedpm.data.local import data_root, locate

    root = data_root(data_dir)
    name = Column("name", min_width=max(map(len, SPECS)))  # which is to be typed, so it is whole on any terminal
    table = Table(name, "train", "test", "classes", "images", "download", "here", box=None, pad_edge=False)
    table.add_row("digits", "1,438", "359", "10", "1×8×8", "none", "always")
    for spec in SPECS.values():
        location = locate(spec.name, data_dir)
        here = "no" if location is None else str(location.path.relative_to(root)) + ", verified" * location.stored
        shape = "×".join(map(str, spec.shape))
        train, test = (f"{count:,}" for count in spec.counts)
        table.add_row(spec.name, train, test, str(len(spec.classes)), shape, f"{spec.megabytes} MB", here)
    console.print(table)
    console.print(f"\nfolder: {root}")


@app.command()
def get(name: Name, data_dir: DataDir = None) -> None:
    """Get the official files of a data set, verified, and store them for later runs."""
    from fedpm.data.catalog import SPECS
    from fedpm.data.sources import get as fetch

    if name == "digits":
        console.print("digits: comes with fedpm, there is nothing to get")
        return
    if name not in SPECS:
        raise ConfigError(f"{name}: there is no such data set; {choices(name, SPECS)}")
    try:
        with fetch_progress(console) as show:
            location = fetch(name, data_dir, report=show)
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; go on with: fedpm data get {name}") from None
    console.print(f"{SPECS[name].title}: the official files, verified, are in {location.path}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A data set, or a folder with your own arrays.", autocompletion=complete_data)
    ],
    split: Annotated[str | None, typer.Option(help="Also split over clients: iid, classes, dirichlet, given.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the split, N.")] = 10,
    classes_per_client: Annotated[int | None, typer.Option(help="c_max of --split classes.")] = None,
    alpha: Annotated[float | None, typer.Option(help="α of --split dirichlet.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the split.")] = 0,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Also draw examples of each class, into a new PNG.")] = None,
    label: Label = None,
    client: Client = None,
) -> None:
    """Counts, classes, shapes, channel mean and standard deviation; with --out a picture."""
    if out is not None:
        _check_picture(out)
    from fedpm.data.datasets import load_dataset
    from fedpm.data.federation import Federation
    from fedpm.data.partition import split as partition

    dataset = load_dataset(name, data_dir, label=label, client=client)
    if not dataset.labelled and (out is not None or split not in (None, "iid", "given")):
        raise ConfigError(
            f"{name}: has no class an example to draw or to divide by; use --split iid or given, no --out"
        )
    console.print(printable(describe(dataset)))
    parts = None
    if split == "given" and isinstance(dataset, Federation):
        parts = dataset.parts()
        console.print(printable(describe_split(dataset, parts, dataset.clients)))
    elif split is not None:
        labels = dataset.train.y
        parts = partition(labels, clients, seed, split, classes_per_client=classes_per_client, alpha=alpha)
        console.print(printable(describe_split(dataset, parts)))
    if out is not None:
        from fedpm.data.pictures import save_picture

        save_picture(dataset, parts, out)
    console.print(f"picture   {out or 'none: draw one with --out FILE.png'}")


def _check_picture(path: Path) -> None:
    """Refuse before any work what could not be drawn, or would be written over."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--out {path}: the picture is a PNG, so its name should end in .png")
    if path.exists():
        raise ConfigError(f"--out {path}: this file exists already; choose another name, or remove it")
    require("report", "a picture", "matplotlib")


def _figures(values: list[float]) -> str:
    """Return figures of channels or columns; of many, the least and the greatest."""
    if len(values) > _MOST:
        return f"{min(values):.4f} to {max(values):.4f}"
    return " ".join(f"{value:.4f}" for value in values)


def channel_statistics(dataset: Dataset) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel or column of training inputs; images count in [0, 1]."""
    import numpy as np

    x = np.asarray(dataset.train.x)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    channels = [x] if x.ndim < 2 else [x[:, channel] for channel in range(x.shape[1])]
    return [float(c.mean(dtype=np.float64) / scale) for c in channels], [
        float(c.std(dtype=np.float64) / scale) for c in channels
    ]


def describe(dataset: Dataset) -> str:
    """Return a data set in figures."""
    y, each = (
        dataset.train.y,
        {
            part: f", {_per_class(shard, len(dataset.classes))}" if dataset.labelled else ""
            for part, shard in (("train", dataset.train), ("test", dataset.test))
        },
    )
    named = f"classes   {len(dataset.classes)}: {_shortened([_seen(name) for name in dataset.classes])}"
    lines = [
        f"name      {dataset.name}",
        f"train     {len(dataset.train):,} examples{each['train']}",
        f"test      {len(dataset.test):,} examples{each['test']}",
        named if dataset.labelled else f"labels    {'×'.join(map(str, y.shape[1:])) or 'a number'} {y.dtype}",
        f"input     {'×'.join(map(str, dataset.input_shape))} {dataset.train.x.dtype}",
    ]
    mean, std = channel_statistics(dataset)
    kind = "column" if len(dataset.input_shape) == 1 else "channel"
    lines.append(f"mean      {_figures(mean)}  (of the training inputs, a {kind})")
    lines.append(f"std       {_figures(std)}")
    return "\n".join(lines)


def describe_split(dataset: Dataset, parts: list[Indices], names: Sequence[str] = (), rows: int = 20) -> str:
    """Return the clients' class histograms, of the first clients where there are many, and their summary."""
    import numpy as np

    from fedpm.data.partition import histogram

    sizes = np.array([len(part) for part in parts])
    lines = [f"clients   {len(parts):,}"]
    lines.append(f"examples  {sizes.min():,} to {sizes.max():,} a client, median {int(np.median(sizes)):,}")
    counts = histogram(dataset.train.y, parts, len(dataset.classes)) if dataset.labelled else np.zeros((len(parts), 0))
    if dataset.labelled:
        classes = (counts > 0).sum(1)
        lines.append(f"classes   {classes.min()} to {classes.max()} a client, mean {classes.mean():.2f}")
    for client in range(min(rows, len(parts))):
        there = [f"{_seen(dataset.classes[c])}:{counts[client, c]}" for c in np.flatnonzero(counts[client])]
        held = f" = {_shortened(there)}" if there else ""
        lines.append(f"  client {names[client] if names else client}: {sizes[client]:,}{held}")
    if len(parts) > rows:
        lines.append(f"  … and {len(parts) - rows:,} more")
    return "\n".join(lines)


def _per_class(shard: Shard, classes: int) -> str:
    import numpy as np

    counts = np.bincount(shard.y, minlength=classes)
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,} a class" if low == high else f"{low:,} to {high:,} a class"


def _seen(name: str) -> str:
    """Return the name of a class, quoted if spaces at its ends would not be seen."""
    return name if name == name.strip() else repr(name)


def _shortened(items: list[str], most: int = 12) -> str:
    return " ".join(items[:most]) + (f" … ({len(items) - most} more)" if len(items) > most else "")
