"""For whom a network is good: accuracy by class, and the scores of clients on examples of their own."""

import json
from collections.abc import Callable
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpm.report.curves import Drawn
from fedpm.report.style import MUTED, colour
from fedpm.study.results import Collection, Group, Outcome

KINDS = {
    "client_scores": "network of the round",
    "client_before": "as received",
    "client_after": "after own training",
}
"""What clients score, and what to call it."""
_NAMED = 24  # classes that have a row of their own, at most
_ROWS = 16  # rows of clients' scores, at most


def class_names(run: Outcome) -> list[str]:
    """Return the names of a run's classes."""
    file = run.folder / "clients.json"
    names = json.loads(file.read_text())["classes"] if file.is_file() else []
    scores = run.records[-1].get("class_accuracy", [])
    return [names[place] if place < len(names) else str(place) for place in range(len(scores))]


def by_class(group: Group) -> list[float] | None:
    """Return the accuracy of each class, the mean over seeds; NaN for one that does not occur."""
    rows = [run.summary.get("class_accuracy") or run.records[-1].get("class_accuracy") for run in group.runs]
    there = [[np.nan if value is None else value for value in row] for row in rows if row]
    if not there or len({len(row) for row in there}) > 1:
        return None
    return [float(value) for value in np.mean(there, 0)]


def by_client(run: Outcome, kind: str) -> dict[str, float]:
    """Return the last score of each client, by its name."""
    found: dict[str, float] = {}
    for record in run.records:
        names = dict(zip(map(str, record["clients"]), record.get("names", ()), strict=False))
        scores: dict[str, float | None] = record.get(kind, {})  # type: ignore[assignment]
        found |= {names.get(client, client): score for client, score in scores.items() if score is not None}
    return found


def lower_is_better(run: Outcome) -> bool:
    """Return whether less is better of the metric that clients score by."""
    last = run.records[-1]
    return next(iter(last.get("metrics", ())), "accuracy") in last.get("lower", ())


def classes(collection: Collection) -> Drawn | None:
    """Draw the accuracy of each class, a colour a group."""
    found = {group.name: (group, row) for group in collection.groups if (row := by_class(group))}
    if not found:
        return None
    names = class_names(next(iter(found.values()))[0].runs[0])
    alike = {name: row for name, (_, row) in found.items() if len(row) == len(names)}
    places = [group.name for group in collection.groups]
    many = len(names) > _NAMED
    height = 2.8 if many else 0.8 + max(0.24 * len(names), 0.2 * len(alike))
    figure, axes = _axes(3.6 if many else 3.4, height, 0.8 if many else 1.3, max(map(len, alike)))
    for number, (name, row) in enumerate(list(alike.items())[:_ROWS]):
        paint = colour(name, places.index(name))
        heights = np.arange(len(row)) + 0.18 * (number - (min(len(alike), _ROWS) - 1) / 2) / max(1, len(alike) / 4)
        if many:
            axes.plot(range(1, len(row) + 1), sorted(row), color=paint, label=name)
        else:
            axes.plot(row, heights, "o", color=paint, markersize=4.5, label=name)
    if many:
        axes.set(xlabel="class, the worst first", ylabel="test accuracy")
    else:
        axes.set_yticks(range(len(names)), [name if len(name) <= 16 else f"{name[:15]}…" for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)  # whole dots of the first and the last class
        axes.set_xlabel("test accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if len(alike) > 1:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return Drawn(
        "class-accuracy", "Accuracy of each class", "Of the shipped network on test data, means over seeds.", figure
    )


def clients(collection: Collection) -> Drawn | None:
    """Draw the scores of all clients, a row for each group and each thing that they scored."""
    rows: list[tuple[str, str, str, dict[str, float], Callable[..., Any]]] = []
    for place, group in enumerate(collection.groups):
        run = group.runs[0]
        worst = max if lower_is_better(run) else min
        for kind, what in KINDS.items():
            if scores := by_client(run, kind):
                rows.append((group.name, what, colour(group.name, place), scores, worst))
    if not rows:
        return None
    rows = rows[:_ROWS]
    labels = [f"{name}, {what}" if len(collection.groups) > 1 else what for name, what, *_ in rows]
    longest = max(map(len, labels))
    figure, axes = _axes(3.6, 0.85 + 0.5 * len(rows), 0.3 + 0.072 * longest, 0)
    for height, (_, _, paint, scores, worst) in enumerate(rows):
        values = np.array(list(scores.values()))
        axes.plot(values, np.full(len(values), height), "o", color=paint, markersize=5, alpha=0.55, markeredgewidth=0)
        axes.plot([median(values)] * 2, [height - 0.15, height + 0.15], color=paint, linewidth=2)
        last = worst(scores, key=lambda name: scores[name])
        axes.annotate(
            f"{last}: {scores[last]:.2f}", (scores[last], height), (0, 7), textcoords="offset points",
            fontsize=8, color=MUTED, ha="center", va="bottom",
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.75)
    axes.margins(x=0.2)
    metric = next(iter(collection.groups[0].runs[0].records[-1].get("metrics", ())), "accuracy")
    axes.set_xlabel(metric)
    if metric == "accuracy":
        axes.set_xlim(right=1.05)
    text = (
        "Each client's last score on examples that it holds out, of the first seed; the line is the median, the name "
        "that of the client served worst."
    )
    return Drawn("client-scores", "Scores of the clients", text, figure)


def _axes(width: float, height: float, left: float, names: int) -> tuple[Figure, Axes]:
    """Return a figure with room for words on the left, and for the names of so many letters on the right."""
    whole = left + width + 0.35 + (0.35 + 0.09 * names if names else 0)
    figure = Figure(figsize=(whole, height))
    return figure, figure.add_axes((left / whole, 0.5 / height, width / whole, 1 - 0.65 / height))


def rows(collection: Collection) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of whom networks serve worst; no rows if nothing is known."""
    head = ["worst class", "worst client", "median client", "after own training"]
    found = [[_worst_class(group), *_clients(group)] for group in collection.groups]
    return head, found if any(cell != "–" for row in found for cell in row) else []


def _worst_class(group: Group) -> str:
    scores = by_class(group)
    if not scores or np.isnan(scores).all():
        return "–"
    place = int(np.nanargmin(scores))
    return f"{scores[place]:.3f} ({class_names(group.runs[0])[place]})"


def _clients(group: Group) -> list[str]:
    """Return the worst score of the global network, with the client's name, its median, and that after training."""
    run = group.runs[0]
    known = by_client(run, "client_scores") or by_client(run, "client_before")
    if not known:
        return ["–"] * 3
    last = (max if lower_is_better(run) else min)(known, key=lambda name: known[name])
    every = [by_client(one, "client_after") for one in group.runs]
    after = [median(scores.values()) for scores in every if scores]
    return [f"{known[last]:.3f} ({last})", f"{median(known.values()):.3f}", f"{mean(after):.3f}" if after else "–"]
