"""Figures of lines: accuracy and bits over rounds, and accuracy against bytes."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedpm.report.style import DASHES, MUTED, PAPER, colour
from fedpm.study.results import Collection, Group, called

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """A figure with a name, and words about it."""

    name: str
    title: str
    text: str
    figure: Figure
    wide: bool = False


@dataclass(frozen=True)
class Line:
    """A series: its name and colour, x, and mean and standard deviation of y."""

    name: str
    colour: str
    strong: bool
    x: Array
    y: Array
    sigma: Array


Maker = Callable[[Group, str, str, bool], Line | None]


def panels(collection: Collection) -> tuple[str, dict[str, list[Group]]]:
    """Return the axis whose labels are lines, and the groups of each panel: the other axes' labels together."""
    series = _series(collection)
    found: dict[str, list[Group]] = {}
    for group in collection.groups:
        rest = [f"{axis} = {label}" for axis, label in group.labels.items() if axis != series]
        found.setdefault(", ".join(rest), []).append(group)
    return series, found


def _series(collection: Collection) -> str:
    """Return the algorithms, or the axis with most labels, of several the last: what there is most of is compared."""
    axes = collection.axes
    if "algorithm" in axes or not axes:
        return "algorithm"
    return max(reversed(axes), key=lambda axis: len({group.labels.get(axis) for group in collection.groups}))


def over_rounds(key: str, start: int = 1) -> Maker:
    """Return what makes a line of a figure over rounds, from a round on."""

    def make(group: Group, name: str, paint: str, strong: bool) -> Line | None:
        columns = [[np.nan if v is None else v for v in run.column(key)] for run in group.runs]
        y = _aligned(columns)[:, start - 1 :]
        there = ~np.isnan(y).any(0)  # a loss that is not finite is not there
        x = start + np.arange(float(y.shape[1]))[there]
        return _line(name, paint, strong, x, y[:, there]) if there.any() else None

    return make


def over_bytes(group: Group, name: str, paint: str, strong: bool) -> Line | None:
    """Return accuracy against the megabytes of all clients both ways so far."""
    spent = _aligned([list(np.cumsum([float(v or 0) for v in run.column("total_bytes")])) for run in group.runs])
    accuracy = _aligned([[np.nan if v is None else v for v in run.column("accuracy")] for run in group.runs])
    there = ~np.isnan(accuracy).any(0)
    return _line(name, paint, strong, spent.mean(0)[there] / 1e6, accuracy[:, there]) if there.any() else None


def draw(collection: Collection, make: Maker, xlabel: str, ylabel: str, *, bytes_across: bool = False) -> Figure | None:
    """Draw a panel for each combination of the axes that are no lines; nothing if no run has such figures."""
    series, found = panels(collection)
    columns = min(len(found), 4 if len(found) > 3 else 3)
    width, height = ((8.6, 3.7) if bytes_across else (4.9, 3.0), (3.4, 2.6), (2.6, 2.1))[min(columns - 1, 2)]
    names = max(len(called(series, group.labels.get(series, group.name))) for group in collection.groups)
    gaps = (0.4 + 0.075 * names, 0.45)
    titles = fitted(list(found), width + gaps[0])
    figure, grid = laid_out(titles, columns, (width, height), gaps, share=True)
    drawn: dict[Axes, list[Line]] = {}
    labels = list(dict.fromkeys(group.labels.get(series, group.name) for group in collection.groups))
    for axes, title, groups in zip(grid.flat, titles, found.values(), strict=False):
        axes.set_title(title)
        drawn[axes] = _panel(axes, groups, labels, series, make)
    everything = [line for lines in drawn.values() for line in lines]
    if not everything:
        return None
    _scale(grid[0, 0], everything, bytes_across, columns == 1)
    for axes, lines in drawn.items():
        _name(axes, lines)
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    return figure


def fitted(titles: list[str], inches: float) -> list[str]:
    """Return titles of panels in lines that fit the width, so that none runs into the next."""
    return ["\n".join(textwrap.wrap(title, max(8, int(inches / 0.085)))) for title in titles]


def laid_out(
    titles: list[str],
    columns: int,
    size: tuple[float, float],
    gaps: tuple[float, float],
    *,
    share: bool = False,
    below: float = 0,
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return a figure with a panel a title, of a size in inches, gaps right of and above each, and their axes.

    ``below`` is how much more room the words under a panel need.
    """
    count = len(titles)
    lines = max(title.count("\n") for title in titles) if any(titles) else -1.5
    gaps = gaps[0], gaps[1] + 0.17 * lines
    rows = -(-count // columns)
    left, bottom = 0.78, 0.5 + below
    gaps = gaps[0], gaps[1] + below * (rows > 1)
    width = left + columns * (size[0] + gaps[0])
    height = bottom + rows * (size[1] + gaps[1])
    figure = Figure(figsize=(width, height))
    edges = {"left": left / width, "right": 1 - gaps[0] / width, "bottom": bottom / height, "top": 1 - gaps[1] / height}
    spaces = {"wspace": gaps[0] / size[0], "hspace": gaps[1] / size[1]}
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share, gridspec_kw={**edges, **spaces})
    for axes in list(grid.flat)[count:]:
        axes.set_visible(False)
    return figure, grid


def _scale(axes: Axes, lines: list[Line], bytes_across: bool, roomy: bool) -> None:
    """Choose the scales of all panels: bytes and bits that differ widely are logarithmic, and no tick has an offset."""
    axes.margins(x=0.02)
    x, y = (np.concatenate([getattr(line, which) for line in lines]) for which in ("x", "y"))
    far = bytes_across and x.max() > 4 * x.min() > 0
    wide = not bytes_across and y.min() > 0 and y.max() > 4 * y.min() and y.max() > 1
    for axis, scale, logarithmic in ((axes.xaxis, axes.set_xscale, far), (axes.yaxis, axes.set_yscale, wide)):
        if logarithmic:
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if roomy else (1.0,)))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    middle = (y.min() + y.max()) / 2
    if y.max() - y.min() < 0.02 * abs(middle):  # else a hair's breadth fills the panel
        axes.set_ylim(middle - 0.02 * abs(middle), middle + 0.02 * abs(middle))
    if not bytes_across:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def _panel(axes: Axes, groups: list[Group], labels: list[str], series: str, make: Maker) -> list[Line]:
    lines = []
    for group in groups:
        label = group.labels.get(series, group.name)
        strong = label.startswith("fedpm") or series != "algorithm"
        drawn_line = make(group, called(series, label), colour(label, labels.index(label)), strong)
        if drawn_line is not None:
            lines.append(drawn_line)
    painted: Counter[str] = Counter()
    for line in sorted(lines, key=lambda line: line.strong):
        width = 2.2 if line.strong else 1.3
        style = DASHES[painted[line.colour] % len(DASHES)]  # variants of an algorithm share its colour
        painted[line.colour] += 1
        order = 3 if line.strong else 2
        (drawn,) = axes.plot(line.x, line.y, color=line.colour, linewidth=width, linestyle=style, zorder=order)
        drawn.set_gid(f"line {line.name}".replace(" ", "-"))
        axes.plot(line.x[-1:], line.y[-1:], "o", color=line.colour, markersize=4 if line.strong else 3, zorder=4)
        if line.sigma.any():
            low, high = line.y - line.sigma, line.y + line.sigma
            axes.fill_between(line.x, low, high, color=line.colour, alpha=0.15, linewidth=0)
    return lines


def _name(axes: Axes, lines: list[Line]) -> None:
    """Write each line's name beside its end, or right of the panel if it ends near there; names never overlap."""
    if not lines:
        return
    axes.autoscale_view()
    inches = axes.get_window_extent().height / axes.figure.dpi
    to_panel = axes.transData + axes.transAxes.inverted()
    ends = {line.name: to_panel.transform((line.x[-1], line.y[-1])) for line in lines}
    inside = {name: float(x) < 0.72 for name, (x, _) in ends.items()}
    for place in (True, False):
        here = sorted(
            (line for line in lines if inside[line.name] == place), key=lambda line: float(ends[line.name][1])
        )
        heights = apart([float(ends[line.name][1]) for line in here], 0.145 / inches, top=1.0)
        for line, height in zip(here, heights, strict=True):
            x, y = (float(value) for value in ends[line.name])
            left = x + 0.015 if place else 1.025
            away = abs(height - y) > 0.05 / inches or left - x > 0.05
            pointer = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3}
            axes.annotate(
                line.name,
                (x, y),
                (left, height),
                xycoords="axes fraction",
                textcoords="axes fraction",
                color=line.colour,
                fontsize=9,
                fontweight="bold" if line.strong and len(lines) > 1 else "normal",
                va="center",
                annotation_clip=False,
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5} if place else None,
                arrowprops=pointer if away else None,
            )


def apart(heights: list[float], gap: float, top: float = math.inf) -> list[float]:
    """Return rising heights up to ``top``, at least ``gap`` apart, each group of neighbours about its own middle."""
    pools: list[tuple[float, int]] = []  # mean of what is left without the gaps, and how many
    highest = top - gap * (len(heights) - 1)
    for place, height in enumerate(heights):
        mean, count = min(height - place * gap, highest), 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + place * gap for place, mean in enumerate(flat)]


def _aligned(columns: list[list[float]]) -> Array:
    """Return runs × rounds, as many rounds as all of them have."""
    shortest = min(len(column) for column in columns)
    return np.array([column[:shortest] for column in columns], np.float64)


def _line(name: str, paint: str, strong: bool, x: Array, y: Array) -> Line:
    sigma = y.std(0, ddof=1) if len(y) > 1 else np.zeros(y.shape[1])
    return Line(name, paint, strong, x, y.mean(0), sigma)
