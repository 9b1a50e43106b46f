"""Progress of a run or of a download: a live bar on a terminal, plain lines elsewhere."""

from types import TracebackType
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


class RoundProgress:
    """Shows round, test accuracy, bits per parameter both ways, and the time left."""

    def __init__(self, rounds: int, console: Console) -> None:
        self._rounds = rounds
        self._console = console
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, figures="starting")

    def __enter__(self) -> "RoundProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Show a finished round."""
        up, down = record["uplink_bpp"], record["downlink_bpp"]
        figures = f"accuracy {record['accuracy']:.3f}  up {up:.3f} bpp  down {down:.3f} bpp"
        self._bar.update(self._task, completed=record["round"], figures=figures)
        if not self._console.is_terminal:
            print(f"round {record['round']}/{self._rounds}  {figures}  {record['seconds']:.1f} s", flush=True)
        for client, reason in record["rejected"].items():
            self._console.print(f"round {record['round']}: left out the upload of client {client}: {reason}")


class FetchProgress:
    """Shows what is being fetched and how much of it is here."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "FetchProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show how far a download is."""
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
            if not self._console.is_terminal:
                print(f"getting {what}", flush=True)
        self._bar.update(self._tasks[what], completed=done, total=total)
