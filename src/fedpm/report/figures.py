"""All figures of a collection, and their files."""

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpm.files import make_folder, write_atomically
from fedpm.report import fairness
from fedpm.report.curves import Drawn, draw, fitted, laid_out, over_bytes, over_rounds
from fedpm.report.frontier import frontier
from fedpm.report.held import held
from fedpm.report.runs import by_run
from fedpm.report.style import BLUE, PANELS, RC, colour, on_white, panel_width
from fedpm.study.results import Collection, Group, Outcome


@dataclass(frozen=True)
class Curve:
    """A figure over rounds: of which key, from which round on, and what its axis says."""

    name: str
    title: str
    text: str
    key: str
    ylabel: str
    start: int = 1


_METRIC = "On the test data after each round; the band is ± σ over seeds."
_CURVES = [
    Curve(
        "accuracy-rounds",
        "Accuracy over rounds",
        "Test accuracy after each round; the band is ± σ over seeds.",
        "accuracy",
        "test accuracy",
    ),
    Curve("loss-rounds", "Test loss", "Mean on the test data after each round.", "loss", "loss"),
    Curve(
        "train-loss-rounds",
        "Training loss",
        "Of the last local epoch, mean over the clients of a round.",
        "train_loss",
        "loss",
    ),
    Curve(
        "bpp-rounds",
        "Bits per parameter sent up",
        "As really sent, a client and round.",
        "uplink_bpp",
        "bits per parameter",
    ),
    Curve(
        "paper-bpp-rounds",
        "The same, by the paper's accounting",
        "The entropy of the frequencies of what is sent: an estimate, not bytes.",
        "paper_bpp",
        "bits per parameter",
    ),
    Curve(
        "downlink-rounds",
        "Bits per parameter sent down",
        "As really sent, a client and round, from round 2: the first broadcast is a seed.",
        "downlink_bpp",
        "bits per parameter",
        start=2,
    ),
]


def figures(collection: Collection) -> list[Drawn]:
    """Draw everything that the runs of a collection have figures for."""
    if collection.study is None:
        collection = by_run(collection)
    with mpl.rc_context(RC):
        costs = draw(collection, over_bytes, "MB, all clients, both ways", "test accuracy", bytes_across=True)
        found = [_costs(costs)] if costs else []
        metrics = [Curve(f"{_plain(name)}-rounds", name, _METRIC, name, name) for name in collection.metrics]
        for curve in (*metrics, *_CURVES):
            figure = draw(collection, over_rounds(curve.key, curve.start), "round", curve.ylabel)
            found += [Drawn(curve.name, curve.title, curve.text, figure)] if figure else []
        others = (
            frontier(collection),
            fairness.classes(collection),
            fairness.clients(collection),
            _theta(collection),
            _sparsity(collection),
            held(collection),
        )
        return [*found, *filter(None, others)]


def _plain(name: str) -> str:
    """Return a metric's name as a file may be called."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _costs(figure: Figure) -> Drawn:
    text = (
        "What an accuracy costs: bytes that all clients together sent and received since the first round, as "
        "really encoded. Left and up is better."
    )
    return Drawn("accuracy-bytes", "Accuracy against total bytes", text, figure, wide=True)


def _theta(collection: Collection) -> Drawn | None:
    """Draw the histogram of θ over rounds, of the first seed of each group that trains one."""
    groups = [group for group in collection.groups if "theta_histogram" in group.runs[0].records[0]][:PANELS]
    if not groups:
        return None
    columns = min(len(groups), 4)
    width = panel_width(len(groups))
    titles = fitted([group.name for group in groups], width + 0.4)
    figure, grid = laid_out(titles, columns, (width, 2.1), (0.55, 0.6))
    for axes, group, title in zip(grid.flat, groups, titles, strict=False):
        counts = np.array([record["theta_histogram"] for record in group.runs[0].records], np.float64)
        share = (counts / counts.sum(1, keepdims=True)).T
        picture = np.zeros((*share.shape, 4))
        picture[..., :3] = BLUE
        picture[..., 3] = (share / share.max()) ** 0.5
        axes.imshow(
            picture,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, share.shape[1] + 0.5, -0.025, 1.025),
        )
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axes.grid(visible=False)
        axes.set(title=title, xlabel="round", ylabel="θ")
    text = (
        "How many parameters have which probability, in steps of 0.05, bluer for more (square root of the "
        "share); of K masks it is a multiple of 1/K. "
        "Weights that clients agree on gather at 0 and 1."
    )
    return Drawn(
        "theta", "Histogram of θ over rounds", text + _left_out(collection, groups), figure, wide=len(groups) > 2
    )


def _sparsity(collection: Collection) -> Drawn | None:
    """Draw the share of kept weights in each layer of the final masks, means over seeds."""
    kept = {g.name: np.mean(found, 0) for g in collection.groups if (found := [k for r in g.runs if (k := _kept(r))])}
    places = [group.name for group in collection.groups]
    if not kept:
        return None
    named = next(run for run in collection.runs if _kept(run)).summary["layers"]
    named = [layer for layer in named if "kept" in layer]
    weights = [place for place, layer in enumerate(named) if not layer["name"].endswith("bias")]
    names = max(len(name) for name in kept) if len(kept) > 1 else 0
    width, height = 5.2 + 0.4 + 0.075 * names, 0.75 + 0.26 * max(len(weights), len(kept))
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((1.7 / width, 0.55 / height, 3.4 / width, 1 - 0.65 / height))
    for name, shares in list(kept.items())[:PANELS]:
        if len(shares) == len(named):
            paint = colour(name, places.index(name))  # as in the other figures
            axes.plot(shares[weights], range(len(weights)), "o", color=paint, markersize=5, label=name)
    axes.set_yticks(range(len(weights)), [f"{named[w]['name']}  {named[w]['size']:,}" for w in weights])
    axes.invert_yaxis()
    axes.set_xlabel("share of weights that the final mask keeps")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    if len(kept) > 1:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = "Each layer's weights, with their number. A mask that keeps half of them holds one bit each."
    return Drawn("sparsity", "Sparsity per layer", text, figure)


def _kept(run: Outcome) -> list[float]:
    return [layer["kept"] for layer in run.summary.get("layers", []) if "kept" in layer]


def _left_out(collection: Collection, shown: list[Group]) -> str:
    more = sum("theta_histogram" in group.runs[0].records[0] for group in collection.groups) - len(shown)
    return f" {more} more are not shown." if more else ""


def _rendered(figure: Figure, form: str) -> bytes:
    """Return a figure as png or pdf on white, or as svg on nothing; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    about = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {"Software": None}
    with mpl.rc_context({**RC, "svg.hashsalt": "fedpm"}):
        figure.savefig(buffer, format=form, metadata=about, dpi=200, transparent=form == "svg")
    return buffer.getvalue()


def save(drawn: Drawn, folder: Path) -> str:
    """Write a figure as PNG, SVG and PDF, on white, and return it as SVG for a page of any colour."""
    make_folder(folder)
    files = {form: _rendered(drawn.figure, form) for form in ("png", "svg", "pdf")}
    for form, data in files.items():
        write_atomically(folder / f"{drawn.name}.{form}", on_white(data) if form == "svg" else data)
    return files["svg"].decode()
