"""The frontier of a study with goals: rounds until a goal against bytes until it."""

from math import log
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedpm.report.curves import Drawn, laid_out
from fedpm.report.style import colour
from fedpm.study.results import Collection, Group, called

_SIZE = (5.2, 3.4)


def frontier(collection: Collection) -> Drawn | None:
    """Draw a panel for each goal that some group reaches with all seeds, and in it a point a group."""
    found = {goal: points for goal in collection.goals if (points := _points(collection, goal))}
    if not found:
        return None
    figure, grid = laid_out([f"until {goal:g}" for goal in found], 1, _SIZE, (1.2, 0.45))
    for axes, (goal, points) in zip(grid.flat, found.items(), strict=False):
        axes.set_title(f"until {goal:g}")
        axes.set_xscale("log")
        axes.set(xlabel="MB, all clients, both ways", ylabel="rounds")
        axes.margins(0.12)
        _draw(axes, points)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    text = "Means over seeds, of what reaches the goal with every seed. Lower left is better."
    return Drawn("frontier", "Rounds and bytes until a goal", text, figure)


def _draw(axes: Axes, points: dict[str, tuple[float, float]]) -> None:
    """Draw points with their names: left of a point near the right edge, below one that has a name near it."""
    least, most = min(spent for _, spent in points.values()), max(spent for _, spent in points.values())
    height = max(rounds for rounds, _ in points.values()) - min(rounds for rounds, _ in points.values())
    names: list[tuple[float, float]] = []
    for place, (name, (rounds, spent)) in enumerate(sorted(points.items(), key=lambda point: point[1][1])):
        along = log(spent / least) / (log(most / least) or 1.0)
        side, shift = ("right", -5) if along > 0.8 else ("left", 5)
        above, line = rounds + 0.04 * height, 0.08 * height
        below = any(along - x < 0.3 and abs(above - y) < line for x, y in names)
        names.append((along, above - line if below else above))
        axes.plot(spent, rounds, "o", color=colour(name, place))
        axes.annotate(
            name, (spent, rounds), xytext=(shift, -12 if below else 4), textcoords="offset points", ha=side,
            color=colour(name, place),
        )  # fmt: skip


def _points(collection: Collection, goal: float) -> dict[str, tuple[float, float]]:
    """Return rounds and megabytes until a goal by group."""
    differ = [axis for axis in collection.axes if len({group.labels[axis] for group in collection.groups}) > 1]
    return {_name(group, differ): found for group in collection.groups if (found := _reached(group, goal))}


def _name(group: Group, axes: list[str]) -> str:
    return ", ".join(called(axis, group.labels[axis]) for axis in axes) or group.name


def _reached(group: Group, goal: float) -> tuple[float, float] | None:
    rounds = [next((r["round"] for r in run.records if r.get("accuracy", 0.0) >= goal), None) for run in group.runs]
    spent = [run.bytes_to(goal) for run in group.runs]
    if any(value is None for value in spent):
        return None
    return mean(r for r in rounds if r), mean(s for s in spent if s is not None) / 1e6
