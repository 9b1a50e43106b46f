"""Python processes at the other end of a pipe: they end with this one, and none of them blocks it for ever.

The program's own script is run again in a child only if what the child is sent needs it, and only up to the first run
that it starts: a script needs no ``if __name__ == "__main__"``.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpm.errors import EngineError
from fedpm.processes import end_with_parent, interrupts_blocked

TICK = 5.0
"""Seconds between two looks at the children."""
FORKS = sys.platform == "linux"
"""Whether children are forks of a process that has imported what they need: it takes a core two seconds, once."""
PRELOADED = ["torch", "fedpm.engines.inprocess", "fedpm.training.scores"]


class Child:
    """A Python process at the other end of a pipe, which ends with this one and leaves Ctrl-C to it.

    One that was stopped is continued. One that owes an answer and used no processor time for ``patience`` seconds, in
    which this process was awake, is killed; a child that computes is left in peace, however long it takes.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any, patience: float = float("inf")) -> None:
        """Start a process that calls ``target`` with its end of the pipe and the arguments."""
        stop_import()
        work = bytes(ForkingPickler.dumps((target, arguments)))
        context = get_context("forkserver") if FORKS else get_context("spawn")
        context.set_forkserver_preload(PRELOADED)
        self.pipe, theirs = context.Pipe()
        script = _main() if b"__main__" in work else None
        self.process = context.Process(target=_call, args=(theirs, dict(os.environ), script))
        if os.name == "posix":
            resource_tracker.ensure_running()  # multiprocessing's own process, whose start would lift the block
        with interrupts_blocked(), _main_hidden():
            self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self._patience, self._owing, self._given_up = patience, True, False
        self._idle, self._used = 0.0, 0.0
        _children.add(self)
        _watch()
        try:
            with suppress(OSError):  # that it has ended is found out when it should answer
                self.pipe.send_bytes(work)
        except BaseException:
            self.kill()
            raise

    def send(self, message: Any) -> None:
        """Send the process a message that it is to answer; raise EngineError if it has ended."""
        self._idle, self._owing = 0.0, True
        try:
            self.pipe.send(message)
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        """Return what the process sends next; raise EngineError if it has ended."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        self._owing = False
        if isinstance(message, _LoadError):
            raise message
        return message

    def _ended(self) -> EngineError:
        self.process.join()
        if self._given_up:
            return EngineError(f"process {self.process.pid} did nothing for {self._patience:.3g} s and was ended")
        return EngineError(f"its process ended with code {self.process.exitcode}")

    def look_after(self, seconds: float) -> None:
        """Continue the process if it was stopped, and kill it if it has done nothing for too long."""
        number = self.process.pid
        if number is None:
            return
        with suppress(OSError):  # it has just ended
            if hasattr(signal, "SIGCONT"):
                os.kill(number, signal.SIGCONT)  # of no effect on one that runs
            used = _processor_time(number)
            owing = self._owing and not self.pipe.poll()  # an answer may wait for this process to read it
            self._idle = self._idle + seconds if owing and used == self._used else 0.0
            self._used = used
            if self._idle > self._patience:
                self._given_up = True
                self.process.kill()

    def end(self, grace: float = 15.0) -> None:
        """Wait for the process to end by itself, but not for ever."""
        self.process.join(grace)
        self.kill()

    def kill(self) -> None:
        """End the process at once, and wait until it is gone."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        _children.discard(self)


def ready(children: Collection[Child], block: bool = True) -> list[Child]:
    """Return those of which there is something to receive, or news of their end; wait for the first if ``block``."""
    pipes = connection.wait([child.pipe for child in children], timeout=None if block and children else 0)
    return [child for child in children if child.pipe in pipes]


def _processor_time(process: int) -> float:
    """Return the seconds of processor time that a process has used; where Linux does not tell, the time of day."""
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime((~process << 3) | 2)  # how the kernel names the clock of another process


_children: set[Child] = set()
_watcher: list[threading.Thread] = []
_importing = False


def _watch() -> None:
    """Look after the children from now on."""
    if not _watcher:
        _watcher.append(threading.Thread(target=_look, daemon=True))
        _watcher[0].start()


def _look() -> None:
    while True:
        time.sleep(TICK)  # counted as that much, also if the whole machine slept for a day
        for child in list(_children):
            child.look_after(TICK)


def _forget() -> None:
    _children.clear()
    _watcher.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _kill_children() -> None:
    """Kill what a second Ctrl-C kept from being ended: multiprocessing would wait for it."""
    for child in list(_children):
        child.kill()


class ImportStoppedError(BaseException):
    """A script that is run again for its definitions has come to its first run; no ``except Exception`` stops it."""


def stop_import() -> None:
    """End the import of a script into a child: what a run needs was defined before it."""
    if _importing:
        raise ImportStoppedError


def _main() -> tuple[Path, str | None] | None:
    """Return file and package of the program's own script; None if it has no file, as what is typed or piped."""
    main = sys.modules["__main__"]
    file = Path(getattr(main, "__file__", None) or "").absolute()
    return (file, main.__package__) if file.is_file() else None


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the program's script again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _import_main(file: Path, package: str | None) -> None:
    """Make a script's definitions known here as those of ``__main__``."""
    global _importing
    module = ModuleType("__mp_main__")  # so that what is below a guard is not run
    module.__file__, module.__package__ = str(file), package
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    _importing = True
    with suppress(ImportStoppedError):
        exec(compile(file.read_bytes(), file, "exec"), module.__dict__)  # noqa: S102 - the program itself
    _importing = False


class _LoadError(EngineError):
    """What a child was sent cannot be made there."""


def _leave_server() -> None:
    """Close the handle that every fork is given: what forks would go on for as long as any has it."""
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    with suppress(AttributeError, OSError, TypeError):
        os.close(server._forkserver_alive_fd)  # type: ignore[union-attr]
        server._forkserver_alive_fd = None  # type: ignore[union-attr]


def _call(pipe: Connection, environment: dict[str, str], main: tuple[Path, str | None] | None) -> None:
    starter = parent_process()
    if FORKS:
        _leave_server()
        end_with_parent(os.getppid())  # the process that forks, which ends with the starter
        os.environ.clear()
        os.environ.update(environment)  # which may have changed since that was started
    elif starter is not None and starter.pid is not None:
        end_with_parent(starter.pid)
    with suppress(EOFError, BrokenPipeError):  # of a parent that has gone on
        work = pipe.recv_bytes()
        try:
            if main is not None:
                _import_main(*main)
            target, arguments = ForkingPickler.loads(work)  # only now, for it may import a lot
        except Exception as error:
            return pipe.send(_LoadError(f"{type(error).__name__}: {error}"))
        target(pipe, *arguments)
