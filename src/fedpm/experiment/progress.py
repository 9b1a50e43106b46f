"""Progress of a run: a live bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from fedpm.experiment.observers import Observer
from fedpm.experiment.record import RoundRecord, complaints, figures, log_line

if TYPE_CHECKING:
    from fedpm.engines.base import Engine, Reply
    from fedpm.engines.base import Task as ClientTask

LONG = 30.0
"""Seconds of a round after which somebody who sees no bar is told how long it takes."""


class Figures(ProgressColumn):
    """The figures of the latest round; where the terminal is narrow they are cut, and round and time stay."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=False))

    def render(self, task: Task) -> Text:
        """Return the figures on one line."""
        return Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")


def columns(unit: str, console: Console) -> tuple[ProgressColumn, ...]:
    """Return what a bar shows: rounds, the bar itself where there is room, figures, and the time left."""
    fixed = Column(no_wrap=True)
    rounds, left = MofNCompleteColumn(table_column=fixed), TimeRemainingColumn(table_column=fixed)
    bar = [BarColumn(min(40, console.width - 72), table_column=fixed)] if console.width >= 80 else []
    return TextColumn(unit, table_column=fixed), rounds, *bar, Figures(), left


@contextmanager
def drawn(bar: Progress) -> Iterator[Progress]:
    """Draw a bar, unless it is disabled: older versions of rich end one of these with an empty line."""
    with nullcontext() if bar.disable else bar:
        yield bar


@contextmanager
def round_progress(
    rounds: int, *, done: int = 0, wanted: bool | None = None, console: Console | None = None, about: str = ""
) -> Iterator[Observer]:
    """Show round, test accuracy, bits per parameter both ways, and the time left; gives what takes each record.

    Unless it is said whether that is ``wanted``, it is shown where somebody is likely to look. ``about`` is said first.
    """
    console = console or Console(highlight=False, markup=False)
    if not shows(wanted, console):
        yield lambda record: None
        return
    if about:
        console.print(about, markup=False, highlight=False, soft_wrap=True)
    live = _live(console)
    with drawn(Progress(*columns("round", console), console=console, disable=not live)) as bar:
        task = bar.add_task("", total=rounds, completed=done, figures="starting")

        def show(record: RoundRecord) -> None:
            # at once: in a notebook nothing would show what changed between the last refresh and the end
            bar.update(task, completed=record["round"], figures=figures(record), refresh=True)
            if not live:
                print(log_line(record, rounds), flush=True)
            for sentence in complaints(record):
                console.print(sentence, markup=False)

        yield show


def _live(console: Console) -> bool:
    """Return whether a bar can be drawn and drawn again."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class Announced:
    """An engine that says once, after its first client, how long a round takes: lines come after whole rounds only."""

    def __init__(self, engine: Engine, workers: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._workers, self._clock, self._said = engine, workers, clock, False

    @property
    def quorum(self) -> int:
        """How many usable answers a round needs."""
        return self._engine.quorum

    def run(self, round: int, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        """Yield the replies of the engine."""
        begun = self._clock()
        for reply in self._engine.run(round, tasks):
            if not self._said:
                self._say(round, len(tasks), self._clock() - begun)
            yield reply

    def _say(self, round: int, clients: int, took: float) -> None:
        self._said = True
        whole = took * -(-clients // self._workers)
        if clients > 1 and whole > LONG:
            about = f"{whole:.0f} s" if whole < 90 else f"{whole / 60:.0f} minutes"
            print(f"round {round}: 1 of {clients} clients in {took:.0f} s; a round takes about {about}", flush=True)

    def close(self) -> None:
        """End what the engine started."""
        self._engine.close()


def announced(engine: Engine, workers: int, wanted: bool | None) -> Engine:
    """Return an engine that says how long a round takes, where plain lines are printed."""
    console = Console()
    return Announced(engine, workers) if shows(wanted, console) and not _live(console) else engine


def shows(wanted: bool | None, console: Console | None = None) -> bool:
    """Return whether progress is shown: as is said, else where output goes to a terminal or a notebook.

    A pipe is none, though colours be forced on it.
    """
    if wanted is not None:
        return wanted
    console = console or Console()
    isatty = getattr(sys.stdout, "isatty", None)
    return console.is_jupyter or bool(isatty and isatty())
