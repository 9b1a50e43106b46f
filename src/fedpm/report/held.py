"""Which classes the clients hold."""

import json
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedpm.report.curves import Drawn, fitted, laid_out
from fedpm.report.style import BLUE, PANELS, panel_width
from fedpm.study.results import Collection, Group

_NAMED = 12  # clients or classes that are named, at most
_LETTERS = 14  # of a name, at most


def held(collection: Collection) -> Drawn | None:
    """Draw which classes the clients hold, once for each split of the data."""
    splits: dict[str, tuple[str, dict[str, Any]]] = {}
    for group in collection.groups:
        file = group.runs[0].folder / "clients.json"
        if group.runs[0].seed == 0 or len(group.runs) == 1:
            text = file.read_text() if file.is_file() else ""
            if text and text not in splits:
                splits[text] = _split_name(group), json.loads(text)
    if not splits:
        return None
    chosen = list(splits.values())[:PANELS]
    columns = min(len(chosen), 4)
    width = panel_width(len(chosen))
    titles = fitted([name for name, _ in chosen], width + 0.4)
    letters = max(_upright(_class_names(about), width) for _, about in chosen)
    figure, grid = laid_out(titles, columns, (width, 2.3), (0.55, 0.75), below=0.07 * letters)
    for axes, title, (_, about) in zip(grid.flat, titles, chosen, strict=False):
        _draw(axes, title, about, width)
    text = "How many examples of each class a client holds, bluer for more; the split of the first seed."
    return Drawn("classes", "Classes of the clients", text, figure, wide=len(chosen) > 2)


def _draw(axes: Axes, title: str, about: dict[str, Any], width: float) -> None:
    counts = np.array(about["counts"], np.float64)
    picture = np.zeros((*counts.shape, 4))
    picture[..., :3] = BLUE
    picture[..., 3] = counts / counts.max()
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    sizes = counts.sum(1)
    each = " to ".join(f"{size:.0f}" for size in sorted({sizes.min(), sizes.max()}))
    axes.set_title(f"{title}\n{each} examples each", fontsize=9)
    axes.set(xlabel="class", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    if (names := about.get("names")) and len(names) <= _NAMED:
        axes.set_yticks(range(len(names)), [str(name)[:_LETTERS] for name in names])
        axes.set_ylabel("")
    if classes := _class_names(about):
        axes.set_xticks(range(len(classes)), classes, rotation=90 if _upright(classes, width) else 0)
        axes.set_xlabel("")


def _class_names(about: dict[str, Any]) -> list[str]:
    """Return the names of classes that an axis has room for; none of those that are numbers, as the axis has them."""
    names = [str(name) for name in about.get("classes", ())]
    told = len(names) <= _NAMED and names != [str(number) for number in range(len(names))]
    return [name[:_LETTERS] for name in names] if told else []


def _upright(names: list[str], width: float) -> int:
    """Return how long names are that have to stand upright, 0 if they fit side by side."""
    letters = max(map(len, names), default=0)
    return letters if 0.1 * letters * len(names) > width else 0


def _split_name(group: Group) -> str:
    config = group.runs[0].config
    data, clients = config["data"], config["clients"]["total"]
    how = {"classes": f"at most {data.get('classes_per_client')} classes", "dirichlet": f"α = {data.get('alpha')}"}
    return f"{clients} clients, {how.get(data['split'], 'their own' if data['split'] == 'given' else 'IID')}"
