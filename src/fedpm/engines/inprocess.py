"""The embedded engine: clients in this process, one after another, or in worker processes."""

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pickle import PicklingError

from fedpm.engines.base import Clients, Reply, Start, Task
from fedpm.errors import EngineError
from fedpm.methods.base import ClientResult
from fedpm.registry import EngineSpec, register


def replied(task: Task, result: ClientResult) -> Reply:
    """Return a reply of a client that cannot go missing."""
    return Reply(task.client, result, len(task.broadcast), len(result.payload))


class Sequential:
    """Runs clients one after another in this process."""

    quorum = 0

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the replies in order."""
        for task in tasks:
            yield replied(task, self._clients.run(round, task))

    def close(self) -> None:
        """Nothing was started."""


class Workers:
    """Runs clients in worker processes; a reply is the same whichever process computes it."""

    quorum = 0

    def __init__(self, clients: Clients, count: int) -> None:
        self._count = count
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (clients,))
        try:
            with interrupts_blocked():
                for started in [self._pool.submit(os.getpid) for _ in range(count)]:
                    started.result()
        except (BrokenProcessPool, PicklingError, AttributeError, TypeError) as error:
            raise EngineError(
                f"worker processes could not start ({error}): network and data of your own should be importable from a "
                "module, and a script should start runs below if __name__ == '__main__'; or use workers=1"
            ) from None

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the replies in order; a few wait their turn, however many clients there are."""
        waiting = iter(tasks)
        running: deque[tuple[Task, Future[ClientResult]]] = deque()
        try:
            while True:
                while len(running) < 2 * self._count and (task := next(waiting, None)) is not None:
                    running.append((task, self._pool.submit(_run_client, round, task)))
                if not running:
                    return
                task, future = running.popleft()
                yield replied(task, future.result())
        except BrokenProcessPool:
            raise EngineError(
                "a worker process ended unexpectedly, most likely for want of memory; use fewer --workers and resume"
            ) from None

    def close(self) -> None:
        """End the worker processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


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


_clients: Clients


def _start_worker(clients: Clients) -> None:
    """Prepare a worker process, which never outlives its parent."""
    global _clients
    _clients = clients
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait for the parent process to end, and end then: for a thread of a process that must not outlive it."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run_client(round: int, task: Task) -> ClientResult:
    return _clients.run(round, task)


def start(clients: Clients, how: Start) -> Sequential | Workers:
    """Start as many worker processes as there are to be, or none."""
    return Sequential(clients) if how.workers == 1 else Workers(clients, how.workers)


register(EngineSpec(name="inprocess", label="in process", about="this program and its worker processes", build=start))
