"""Pictures of a data set: examples of each class, and what the clients of a split hold."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure, SubFigure

from fedpm.data.datasets import Dataset
from fedpm.data.download import writing
from fedpm.data.partition import Indices, histogram
from fedpm.files import write_atomically

_EXAMPLES_PER_CLASS = 10


def save_picture(dataset: Dataset, parts: list[Indices] | None, path: Path) -> None:
    """Write a PNG with the contact sheet, and with the clients' class histograms where a split is given."""
    figure = Figure(figsize=(10, 6 if parts is None else 12), dpi=150)
    if parts is None:
        contact_sheet(dataset, figure)
    else:
        halves = np.asarray(figure.subfigures(2, 1))
        contact_sheet(dataset, halves[0])
        draw_split(dataset, parts, halves[1])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())


def contact_sheet(dataset: Dataset, figure: Figure | SubFigure) -> None:
    """Draw the first training examples of each class, a column a class, classes side by side."""
    axes = figure.add_subplot()
    axes.set_title(f"{dataset.name}: {len(dataset.train):,} train, {len(dataset.test):,} test")
    if len(dataset.input_shape) != 3 or dataset.input_shape[0] not in (1, 3):
        axes.text(0.5, 0.5, f"inputs of shape {dataset.input_shape} have no picture", ha="center")
        axes.axis("off")
        return
    rows, labels = _class_rows(dataset)
    axes.imshow(rows, cmap="gray", interpolation="nearest", vmin=0, vmax=1)
    axes.spines[:].set_visible(False)
    height = len(rows) // len(labels)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_yticks(height * (np.arange(len(labels)) + 0.5) - 0.5, labels, fontsize=7)


def _class_rows(dataset: Dataset) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Return one image of all examples, and the name of the classes of each row."""
    classes, side = len(dataset.classes), 1 if len(dataset.classes) <= 10 else 5
    tiles = [_example_strip(dataset, label) for label in range(classes)]
    tiles += [np.ones_like(tiles[0])] * (-classes % side)
    rows = [np.concatenate(tiles[start : start + side], axis=1) for start in range(0, classes, side)]
    names = [" ".join(dataset.classes[start : start + side]) for start in range(0, classes, side)]
    sheet = np.concatenate(rows)
    return (sheet[..., 0] if sheet.shape[-1] == 1 else sheet), names


def _example_strip(dataset: Dataset, label: int) -> npt.NDArray[np.float32]:
    """Return the first examples of a class side by side with white between them, (H + gap, 10 (W + gap), C)."""
    channels, height, width = dataset.input_shape
    chosen = dataset.train.x[np.flatnonzero(dataset.train.y == label)[:_EXAMPLES_PER_CLASS]]
    scaled = chosen / 255 if chosen.dtype == np.uint8 else np.clip((chosen + 1) / 2, 0, 1)
    gap = max(1, height // 12)
    strip = np.ones((_EXAMPLES_PER_CLASS, channels, height + gap, width + gap), np.float32)
    strip[: len(chosen), :, :height, :width] = scaled
    return strip.transpose(2, 0, 3, 1).reshape(height + gap, -1, channels)


def draw_split(dataset: Dataset, parts: list[Indices], figure: Figure | SubFigure) -> None:
    """Draw how many examples of each class each client has."""
    counts = histogram(dataset.train.y, parts, len(dataset.classes))
    sizes, shares = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    sizes.bar(np.arange(len(parts)), counts.sum(1), width=1, edgecolor="white" if len(parts) <= 100 else "none")
    sizes.set_ylabel("examples")
    image = shares.imshow(counts.T, aspect="auto", interpolation="nearest", cmap="Blues")
    shares.set_xlabel("client")
    shares.set_ylabel("class")
    if len(dataset.classes) <= 50:
        shares.set_yticks(np.arange(len(dataset.classes)), dataset.classes, fontsize=7 if counts.shape[1] <= 20 else 5)
    figure.colorbar(image, ax=[sizes, shares], label="examples of a class")
