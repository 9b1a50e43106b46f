"""The table of everything: a row a group of runs, means over their seeds."""

from collections.abc import Callable
from statistics import mean, stdev

from fedpm.study.results import Collection, Group


def _mean(values: list[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" if values else "–"


def _three_digits(value: float) -> str:
    """Return a number with three digits, or all before the point: sizes of runs differ by orders of magnitude."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def mean_and_deviation(values: list[float], digits: int = 3) -> str:
    """Return mean ± standard deviation."""
    if not values:
        return "–"
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


COLUMNS: dict[str, Callable[[Group], str]] = {
    "accuracy": lambda group: mean_and_deviation(group.finals("accuracy")),
    "bpp up": lambda group: _mean(group.finals("uplink_bpp"), 3),
    "paper's bpp": lambda group: _mean(group.finals("paper_bpp"), 3),
    "bpp down": lambda group: _mean(group.finals("downlink_bpp"), 3),
    "MB": lambda group: _three_digits(mean(run.total_bytes() / 1e6 for run in group.runs)),
    "model bpp": lambda group: _mean(group.finals("model_bpp"), 3),
    "model kB": lambda group: _mean([size / 1e3 for size in group.finals("model_bytes")], 1),
    "seeds": lambda group: str(len(group.finals("uplink_bpp"))),
}
"""Of the table of everything: mean test accuracy ± σ, bits per parameter and client up (real, and by the paper's
accounting) and down, bytes of all clients both ways, bits per parameter and bytes of the model file, finished runs."""


def overview(collection: Collection) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of everything: a row a group, means over the seeds."""
    head = [*(collection.axes or ["algorithm"]), *COLUMNS]
    rows = [
        [*(group.labels.values() or [group.name]), *(column(group) for column in COLUMNS.values())]
        for group in collection.groups
    ]
    for name in collection.metrics:
        head.insert(at := head.index("bpp up"), name)
        for row, group in zip(rows, collection.groups, strict=True):
            row.insert(at, mean_and_deviation(group.finals(name)))
    for goal in collection.goals:
        head.insert(-3, f"MB to {goal:g}")
        for row, group in zip(rows, collection.groups, strict=True):
            row.insert(-3, _to_goal(group, goal))
    return head, rows


def _to_goal(group: Group, goal: float) -> str:
    """Return the mean bytes until a goal is reached if all seeds reach it, else how many do."""
    reached = [spent for run in group.runs if (spent := run.bytes_to(goal)) is not None]
    if len(reached) < len(group.runs):
        return f"{len(reached)} of {len(group.runs)}"
    return _three_digits(mean(spent / 1e6 for spent in reached))
