"""Progress of a study or a download: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedpm.experiment.progress import columns, drawn
from fedpm.experiment.record import headline

if TYPE_CHECKING:
    from fedpm.study.runner import Event


@contextmanager
def study_progress(rounds: list[int], console: Console) -> Iterator[Callable[[Event], None]]:
    """Show how many rounds of how many runs are done, and the time left; gives what takes each event."""
    ended, last = 0, dict[str, int]()
    with drawn(Progress(*columns("rounds", console), console=console, disable=not console.is_terminal)) as bar:
        task = bar.add_task("", total=sum(rounds), figures=f"run 0 of {len(rounds)}")

        def show(event: Event) -> None:
            nonlocal ended
            name, whole = event.run.name, event.run.config.rounds
            now = event.record["round"] if event.what == "round" else whole
            bar.update(task, advance=now - last.get(name, 0))
            last[name] = now
            if event.what == "round":
                return bar.update(task, figures=f"run {ended} of {len(rounds)}  {name} {headline(event.record)}")
            ended += 1
            if event.what == "found":
                return None
            outcome = f"failed: {event.reason}"
            if event.what == "done":
                outcome = f"{headline(event.record)}  {event.record['seconds']:.0f} s"
            print_ = console.print if console.is_terminal else partial(print, flush=True)
            print_(f"run {ended} of {len(rounds)}  {name}  {outcome}")

        yield show


@contextmanager
def fetch_progress(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show what is being fetched and how much of it is here; gives what takes (name, bytes done, bytes in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with drawn(Progress(*columns, console=console, disable=not console.is_terminal)) as bar:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
                if not console.is_terminal:
                    print(f"getting {what}", flush=True)
            bar.update(tasks[what], completed=done, total=total)

        yield show
