"""Progress of a run or of a download: a live bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedpm import wording


@contextmanager
def round_progress(rounds: int, console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show round, test accuracy, bits per parameter both ways, and the time left; gives what takes each record."""
    figures = TextColumn("{task.fields[figures]}")
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), figures, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=rounds, figures="starting")

        def show(record: dict[str, Any]) -> None:
            bar.update(task, completed=record["round"], figures=wording.figures(record))
            if not console.is_terminal:
                print(wording.line(record, rounds), flush=True)
            for sentence in wording.complaints(record):
                console.print(sentence, markup=False)

        yield show


@contextmanager
def fetch_progress(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show what is being fetched and how much of it is here; gives what takes (name, bytes done, bytes in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
                if not console.is_terminal:
                    print(f"getting {what}", flush=True)
            bar.update(tasks[what], completed=done, total=total)

        yield show
