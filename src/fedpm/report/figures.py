"""All figures of a collection, and their files."""

import io
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpm.files import write_atomically
from fedpm.report.curves import Drawn, draw, laid_out, over_bytes, over_rounds
from fedpm.report.style import RC, colour
from fedpm.study.results import Collection, Group, Outcome

_MOST = 8  # panels of a figure that has one for each group
_BLUE = (0x1A / 255, 0x84 / 255, 0xCC / 255)  # between that of the light and that of the dark page


def figures(collection: Collection) -> list[Drawn]:
    """Draw everything that the runs of a collection have figures for."""
    with mpl.rc_context(RC):
        found = [
            Drawn(
                "accuracy-bytes",
                "Accuracy against total bytes",
                "What an accuracy costs: bytes that all clients together sent and received since the first round, as "
                "really encoded. Left and up is better.",
                draw(collection, over_bytes, "MB, all clients, both ways", "test accuracy", bytes_across=True),
                wide=True,
            ),
            Drawn(
                "accuracy-rounds",
                "Accuracy over rounds",
                "Test accuracy after each round; the band is ± σ over seeds.",
                draw(collection, over_rounds("accuracy"), "round", "test accuracy"),
            ),
            Drawn(
                "bpp-rounds",
                "Bits per parameter sent up",
                "As really sent, a client and round.",
                draw(collection, over_rounds("uplink_bpp"), "round", "bits per parameter"),
            ),
            Drawn(
                "paper-bpp-rounds",
                "The same, by the paper's accounting",
                "The entropy of the frequencies of what is sent: an estimate, not bytes.",
                draw(collection, over_rounds("paper_bpp"), "round", "bits per parameter"),
            ),
            Drawn(
                "downlink-rounds",
                "Bits per parameter sent down",
                "As really sent, a client and round, from round 2: the first broadcast is a seed.",
                draw(collection, over_rounds("downlink_bpp", 2), "round", "bits per parameter"),
            ),
        ]
        return [*found, *filter(None, (_theta(collection), _sparsity(collection), _classes(collection)))]


def _theta(collection: Collection) -> Drawn | None:
    """Draw the histogram of θ over rounds, of the first seed of each group that trains one."""
    groups = [group for group in collection.groups if "theta_histogram" in group.runs[0].records[0]][:_MOST]
    if not groups:
        return None
    columns = min(len(groups), 4)
    figure, grid = laid_out(len(groups), columns, (_width(len(groups)), 2.1), (0.55, 0.6))
    for axes, group in zip(grid.flat, groups, strict=False):
        counts = np.array([record["theta_histogram"] for record in group.runs[0].records], np.float64)
        share = (counts / counts.sum(1, keepdims=True)).T
        picture = np.zeros((*share.shape, 4))
        picture[..., :3] = _BLUE
        picture[..., 3] = (share / share.max()) ** 0.5
        axes.imshow(
            picture,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, share.shape[1] + 0.5, -0.025, 1.025),
        )
        axes.grid(visible=False)
        axes.set(title=group.name, xlabel="round", ylabel="θ")
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
    if not kept:
        return None
    named = next(run for run in collection.runs if _kept(run)).summary["layers"]
    weights = [place for place, layer in enumerate(named) if not layer["name"].endswith("bias")]
    names = max(len(name) for name in kept) if len(kept) > 1 else 0
    width, height = 5.2 + 0.4 + 0.075 * names, 0.75 + 0.26 * max(len(weights), len(kept))
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((1.7 / width, 0.55 / height, 3.4 / width, 1 - 0.65 / height))
    for place, (name, shares) in enumerate(list(kept.items())[:_MOST]):
        if len(shares) == len(named):
            axes.plot(shares[weights], range(len(weights)), "o", color=colour(name, place), markersize=5, label=name)
    axes.set_yticks(range(len(weights)), [f"{named[w]['name']}  {named[w]['size']:,}" for w in weights])
    axes.invert_yaxis()
    axes.set_xlabel("share of weights that the final mask keeps")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    if len(kept) > 1:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = "Each layer's weights, with their number. A mask that keeps half of them holds one bit each."
    return Drawn("sparsity", "Sparsity per layer", text, figure)


def _classes(collection: Collection) -> Drawn | None:
    """Draw which classes the clients hold, once for each split of the data."""
    splits: dict[str, tuple[str, dict[str, object]]] = {}
    for group in collection.groups:
        file = group.runs[0].folder / "clients.json"
        if group.runs[0].seed == 0 or len(group.runs) == 1:
            text = file.read_text() if file.is_file() else ""
            if text and text not in splits:
                splits[text] = _split_name(group), json.loads(text)
    if not splits:
        return None
    chosen = list(splits.values())[:_MOST]
    columns = min(len(chosen), 4)
    figure, grid = laid_out(len(chosen), columns, (_width(len(chosen)), 2.3), (0.55, 0.75))
    for axes, (name, held) in zip(grid.flat, chosen, strict=False):
        counts = np.array(held["counts"], np.float64)
        picture = np.zeros((*counts.shape, 4))
        picture[..., :3] = _BLUE
        picture[..., 3] = counts / counts.max()
        axes.imshow(picture, aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        sizes = counts.sum(1)
        each = " to ".join(f"{size:.0f}" for size in sorted({sizes.min(), sizes.max()}))
        axes.set_title(f"{name}\n{each} examples each", fontsize=9)
        axes.set(xlabel="class", ylabel="client")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True))
    text = "How many examples of each class a client holds, bluer for more; the split of the first seed."
    return Drawn("classes", "Classes of the clients", text, figure, wide=len(chosen) > 2)


def _split_name(group: Group) -> str:
    config = group.runs[0].config
    data, clients = config["data"], config["clients"]["total"]
    how = {"classes": f"at most {data.get('classes_per_client')} classes", "dirichlet": f"α = {data.get('alpha')}"}
    return f"{clients} clients, {how.get(data['split'], 'IID')}"


def _kept(run: Outcome) -> list[float]:
    return [layer["kept"] for layer in run.summary.get("layers", []) if "kept" in layer]


def _left_out(collection: Collection, shown: list[Group]) -> str:
    more = sum("theta_histogram" in group.runs[0].records[0] for group in collection.groups) - len(shown)
    return f" {more} more are not shown." if more else ""


def _width(panels: int) -> float:
    """Return how wide panels are, so that text is as large in a half as in a whole page's width."""
    return {1: 4.6, 2: 2.2}.get(panels, 2.6)


def _rendered(figure: Figure, form: str) -> bytes:
    """Return a figure as png, svg or pdf; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    about = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {"Software": None}
    with mpl.rc_context({**RC, "svg.hashsalt": "fedpm"}):
        figure.savefig(buffer, format=form, metadata=about, dpi=200, transparent=form == "svg")
    return buffer.getvalue()


def save(drawn: Drawn, folder: Path) -> str:
    """Write a figure as PNG, SVG and PDF, and return the SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = {form: _rendered(drawn.figure, form) for form in ("png", "svg", "pdf")}
    for form, content in forms.items():
        write_atomically(folder / f"{drawn.name}.{form}", content)
    return forms["svg"].decode()
