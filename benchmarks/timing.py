"""Ratios, both sides in one run, the median of several: what the measurements have in common."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

Row = dict[str, Any]
"""A line of a table: column to figure."""


def timed(cases: Mapping[str, Callable[[], object]], repeats: int = 5, *, cpu: bool = False) -> dict[str, float]:
    """Return the median seconds of each case, of the clock or of the processor.

    Cases take turns, so that a busy machine slows all of them alike.
    """
    clock = process_time if cpu else perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            started = clock()
            case()
            seconds[name].append(clock() - started)
    return {name: median(values) for name, values in seconds.items()}
