"""The picture of the mean estimation experiment: error against ε, by each account of the same release."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

Rows = Sequence[Mapping[str, float]]


def draw(rows: Rows, title: str) -> Figure:
    """Return the figure: the paper's four curves on the left, the same releases by their real ε on the right."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes in (left, right):
        silent = sum(row["error_no_noise"] for row in rows) / len(rows)
        axes.axhline(silent, color="black", label="no noise")
        axes.set(xscale="log", yscale="log", xlabel="ε")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3, which="both")
    _line(left, rows, "epsilon", "noise", "tab:red", "noise, ε of the noise alone", "o")
    _line(left, rows, "epsilon_paper", "noise", "tab:blue", "noise, amplified as in the paper", "s")
    _line(left, rows, "epsilon_paper", "table", "tab:green", "bias-corrected by table, amplified", "^")
    _line(right, rows, "epsilon_amplified", "noise", "tab:blue", "noise, amplified by the pure bound", "s")
    _line(right, rows, "epsilon_release", "noise", "tab:purple", "noise, ε of the whole release", "D")
    _line(right, rows, "epsilon_release", "exact", "tab:olive", "bias-corrected exactly, whole release", "v")
    left.set(ylabel="‖estimate − mean‖²", title="as in the paper")
    right.set(title="by the bits that really leave")
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure


def _line(axes: Axes, rows: Rows, x: str, name: str, colour: str, label: str, marker: str) -> None:
    """Draw mean and standard deviation over repetitions."""
    xs = [row[x] for row in rows]
    ys = [row[f"error_{name}"] for row in rows]
    low = [y - min(row[f"std_{name}"], 0.9 * y) for row, y in zip(rows, ys, strict=True)]
    high = [y + row[f"std_{name}"] for row, y in zip(rows, ys, strict=True)]
    axes.plot(xs, ys, color=colour, label=label, marker=marker, markersize=4)
    axes.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)


def picture(figure: Figure, kind: str) -> bytes:
    """Return the figure as ``png`` or ``svg``."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
