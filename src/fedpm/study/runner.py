"""Running a study: each run in a process of its own, several at a time; what is done is never done again.

A run leaves its folder below the study's. One with a summary is finished, one with settings is continued, and one that
fails is listed while the others go on.
"""

import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedpm.engines.inprocess import end_with_parent, interrupts_blocked
from fedpm.errors import ArtifactError, FedPMError
from fedpm.experiment.api import resume, run
from fedpm.experiment.record import RoundRecord, Summary
from fedpm.files import write_atomically
from fedpm.study.definition import Run, Study, read


@dataclass(frozen=True)
class Event:
    """What happened to a run: it was ``found`` finished, had a ``round``, is ``done``, or ``failed``."""

    run: Run
    what: str
    record: dict[str, Any]
    reason: str = ""


def prepare(folder: Path, study: Study) -> None:
    """Make the study's folder, or check that what is in it is this very study."""
    file = folder / "study.toml"
    if file.is_file():
        before = read(folder)
        if (before.base, before.settings, before.axes) != (study.base, study.settings, study.axes):
            raise ArtifactError(
                f"{folder} holds a study with other settings: choose another --out, or give those settings"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder} exists and holds no study: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, study.to_toml().encode())


def run_all(
    runs: list[Run], folder: Path, processes: int, on_event: Callable[[Event], None] = lambda event: None
) -> dict[str, str]:
    """Make all runs that are not finished; return those that failed, with the reason."""
    waiting = []
    for one in runs:
        if finished(folder / one.name):
            on_event(Event(one, "found", {}))
        else:
            waiting.append(one)
    failures: dict[str, str] = {}
    running: dict[Connection, tuple[Run, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                one = waiting.pop(0)
                receiving, process = _start(one, folder / one.name)
                running[receiving] = one, process
            ready = wait(list(running))
            for receiving in [pipe for pipe in running if pipe in ready]:
                one, process = running[receiving]
                event = _received(one, receiving, process)
                if event.what != "round":
                    del running[receiving]
                    process.join()
                    receiving.close()
                if event.what == "failed":
                    failures[one.name] = event.reason
                on_event(event)
    finally:  # interrupted: rounds that are done are safe in the folders
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
    return failures


def finished(folder: Path) -> bool:
    """Whether a run folder holds a finished run; the summary is written last."""
    return (folder / "summary.json").is_file()


def _start(one: Run, folder: Path) -> tuple[Connection, BaseProcess]:
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(one, folder, sending), name=one.name)
    with interrupts_blocked():
        process.start()
    sending.close()  # so that the end of the process is the end of the pipe
    return receiving, process


def _received(one: Run, receiving: Connection, process: BaseProcess) -> Event:
    """Return what a process reports; one that ends without a word has failed."""
    try:
        what, content = receiving.recv()
    except (EOFError, OSError):
        process.join()
        reason = f"its process ended with code {process.exitcode}, perhaps for want of memory: use fewer --processes"
        return Event(one, "failed", {}, reason)
    return Event(one, "failed", {}, content) if what == "failed" else Event(one, what, content)


def _work(one: Run, folder: Path, sending: Connection) -> None:
    """Make one run, or what is left of it, in a process of its own."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the run's own workers are ended too
    trace = folder.with_name(f"{folder.name}.error.txt")
    try:
        result = _resumed_or_begun(one, folder, lambda record: sending.send(("round", record)))
        trace.unlink(missing_ok=True)
        sending.send(("done", result))
    except (FedPMError, OSError) as error:
        sending.send(("failed", str(error)))
    except Exception as error:  # a fault of ours: tell it, keep the trace, let the other runs go on
        write_atomically(trace, traceback.format_exc().encode())
        sending.send(("failed", f"{type(error).__name__}: {error}; see {trace}"))


def _resumed_or_begun(one: Run, folder: Path, on_round: Callable[[RoundRecord], None]) -> Summary:
    if (folder / "config.toml").is_file():
        return resume(folder, workers=one.config.workers, on_round=on_round).summary
    if folder.is_dir():
        shutil.rmtree(folder)  # killed before there was anything in it
    return run(one.config, out=folder, on_round=on_round).summary
