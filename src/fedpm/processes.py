"""Processes that never outlive the one that started them, however that one ends.

Linux tells a process when its parent dies, even of SIGKILL, and gives orphans to a guard. Elsewhere a thread watches
the parent, and of what a command starts the guard reaches its process group only.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux's prctl."""
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows every signal kills
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


def end_with_parent(parent: int, number: int = _KILL) -> None:
    """Have this process sent a signal once its parent is gone: the first thing for a process to do.

    On Linux the parent is the thread that started it, so start processes from one that stays.
    """
    if not _prctl(_SET_DEATH_SIGNAL, number):
        threading.Thread(target=_watch, args=(parent, number), daemon=True).start()
    elif os.getppid() != parent:  # it died before it was watched
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> bool:
    """Return whether Linux took a setting of this process."""
    return sys.platform == "linux" and bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value)) == 0)


def _watch(parent: int, number: int) -> None:
    starter = parent_process()
    if starter is not None:  # multiprocessing knows, on Windows too, where a dead parent is still named
        connection.wait([starter.sentinel])
    while starter is None and os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), number)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Hold Ctrl-C back while processes start; they inherit the mask, and so leave Ctrl-C to their parent."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended: for foreign code, whose callbacks swallow or do not survive it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # it comes to the main thread alone, and as an exception only if Python handles it
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *signalled: came.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a process group of its own, and with it the group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, _KILL)
    process.kill()  # also on Windows, which has no groups
    process.wait()


def supervise(
    command: list[str], environment: dict[str, str], grace: float = 15.0, *, told: list[int] | None = None
) -> int:
    """Run a command to its end and return its exit code; nothing that it starts outlives it, or this process.

    Signals are added to ``told`` and go to a guard in a session of its own (Flower's SuperLink leaves a mere group). It
    hands them on, and kills what is left ``grace`` seconds after the command has ended or was told to, or we are gone.
    """
    if not hasattr(os, "fork"):  # Windows: what the command starts is left to itself
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - the caller's words
    me, mask = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    guard = os.fork()
    if not guard:
        code = 1
        try:
            os.setsid()  # Ctrl-C is for the parent alone
            _prctl(_SET_SUBREAPER, 1)
            leader = _start(command, environment, mask)
            code = _guard(leader, grace, parent=me, mask=mask)
        finally:
            os._exit(code)

    def hand_on(number: int) -> None:
        (told if told is not None else []).append(number)
        os.kill(guard, number)

    _hand_on(hand_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _exit_code(os.waitpid(guard, 0)[1])


def _start(command: list[str], environment: dict[str, str], mask: Iterable[int]) -> int:
    """Start a command in a process group of its own, which is told to end if this process dies."""
    me = os.getpid()
    if started := os.fork():
        return started
    try:
        os.setpgid(0, 0)
        end_with_parent(me, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(command[0], command, environment)  # noqa: S606 - the caller's words
    finally:
        os._exit(127)


def _guard(leader: int, grace: float, *, parent: int, mask: Iterable[int]) -> int:
    """Wait until the leader and all that it started are gone, and return its exit code."""
    code: int | None = None

    def limit_time() -> None:
        if signal.getitimer(signal.ITIMER_REAL) == (0, 0):
            signal.setitimer(signal.ITIMER_REAL, grace, 0.1)

    def tell(number: int) -> None:
        if code is None:  # else its number may be another's by now
            os.kill(leader, number)
        limit_time()

    signal.signal(signal.SIGALRM, lambda number, frame: _kill_all(leader))
    _hand_on(tell)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_with_parent(parent, signal.SIGTERM)
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            return code or 0
        if ended == leader:
            code = _exit_code(status)
            limit_time()


def _hand_on(receive: Callable[[int], None]) -> None:
    """Take the signals that end a process, but those that are ignored, as with nohup."""
    for number in _ENDING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: receive(number))


def _kill_all(leader: int) -> None:
    """Kill all children of this process; what they leave behind becomes its own, and is killed next time."""
    try:
        children = Path("/proc/thread-self/children").read_text().split()
    except OSError:  # not Linux: of the leader's group all, of others none
        with suppress(ProcessLookupError):
            os.killpg(leader, _KILL)
        return
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(int(child), _KILL)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code  # as a shell tells of a signal
