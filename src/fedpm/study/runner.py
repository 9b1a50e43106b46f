"""Running a study: several runs at a time, each process one after another; what is done is never done again.

A run leaves its folder below the study's. One with a summary is finished, one with settings is continued, and one that
fails is listed while the others go on.
"""

import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedpm.children import Child, ready
from fedpm.config.loading import differences, flattened
from fedpm.errors import ArtifactError, EngineError, FedPMError
from fedpm.experiment.api import resume, run
from fedpm.experiment.observers import Callback
from fedpm.experiment.record import Summary
from fedpm.files import make_folder, write_atomically
from fedpm.study.definition import Run, Study, read


@dataclass(frozen=True)
class Event:
    """What happened to a run: it was ``found`` finished, had a ``round``, is ``done``, or ``failed``."""

    run: Run
    what: str
    record: Any
    """Of a round, or the summary of a run that is done."""
    reason: str = ""


def prepare(folder: Path, study: Study) -> None:
    """Make the study's folder, or check that what is in it is this very study."""
    file = folder / "study.toml"
    if file.is_file():
        before = read(folder)
        if (before.base, before.settings, before.axes) != (study.base, study.settings, study.axes):
            changed = differences(_asked(before), _asked(study))
            more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise ArtifactError(
                f"{folder} holds a study with other settings ({'; '.join(changed[:3])}{more}): choose another --out, "
                "or give those settings"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder} exists and holds no study: choose another --out")
    make_folder(folder)
    write_atomically(file, study.to_toml().encode())


def _asked(study: Study) -> dict[str, Any]:
    """Return what the runs of a study are made of, by dotted keys."""
    return {"base": study.base, **study.settings, **flattened({"axes": study.axes})}


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
    running: dict[Child, Run] = {}
    idle: list[Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                one = waiting.pop(0)
                running[_given(idle, one, folder / one.name)] = one
            for child in ready(running):
                event = _event(running[child], child)
                if event.what != "round":
                    del running[child]
                    idle.append(child)
                if event.what == "failed":
                    failures[event.run.name] = event.reason
                on_event(event)
    finally:  # interrupted: rounds that are done are safe in the folders
        for child in [*running, *idle]:
            child.process.terminate()
        for child in [*running, *idle]:
            child.end()
    return failures


def _given(idle: list[Child], one: Run, folder: Path) -> Child:
    """Give a run to a process that has none, or to a new one: to start one takes as long as a short run."""
    while idle:
        child = idle.pop()
        try:
            child.send((one, folder))
            return child
        except EngineError:  # its last run took it along
            child.end()
    return Child(_work, one, folder)


def finished(folder: Path) -> bool:
    """Whether a run folder holds a finished run; the summary is written last."""
    return (folder / "summary.json").is_file()


def _event(one: Run, child: Child) -> Event:
    """Return what a run's process reports; one that ends without a word has failed."""
    try:
        what, content = child.receive()
    except EngineError as error:
        return Event(one, "failed", {}, f"{error}, perhaps for want of memory: use fewer --processes")
    return Event(one, "failed", {}, content) if what == "failed" else Event(one, what, content)


def _work(pipe: Connection, one: Run, folder: Path) -> None:
    """Make one run after another, or what is left of them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what the run started is ended in good order
    while True:
        _make(pipe, one, folder)
        one, folder = pipe.recv()


def _make(pipe: Connection, one: Run, folder: Path) -> None:
    trace = folder.with_name(f"{folder.name}.error.txt")
    try:
        result = _resumed_or_begun(one, folder, lambda round: pipe.send(("round", round.record)))
        trace.unlink(missing_ok=True)
        pipe.send(("done", result))
    except (FedPMError, OSError) as error:
        pipe.send(("failed", str(error)))
    except Exception as error:  # a fault of ours: tell it, keep the trace, let the other runs go on
        write_atomically(trace, traceback.format_exc().encode())
        pipe.send(("failed", f"{type(error).__name__}: {error}; see {trace}"))


def _resumed_or_begun(one: Run, folder: Path, on_round: Callback) -> Summary:
    if (folder / "config.toml").is_file():
        return resume(folder, workers=one.config.workers, on_round=on_round, progress=False).summary
    if folder.is_dir():
        shutil.rmtree(folder)  # killed before there was anything in it
    return run(one.config, out=folder, on_round=on_round, progress=False).summary
