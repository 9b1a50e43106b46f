"""The embedded engine: clients in this process, one after another, or in worker processes."""

import pickle
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from fedpm.children import Child, ready
from fedpm.engines.base import Clients, Reply, Start, Task
from fedpm.errors import EngineError
from fedpm.methods.base import ClientResult
from fedpm.registry import EngineSpec, register

PATIENCE = 600.0
"""Seconds after which a worker that owes a reply and uses no processor time is given up."""

START = 10.0
"""Seconds of processor time that worker processes should save before they are started, which takes some each."""


_OWN = {
    "net": "your network",
    "loss": "your loss",
    "metrics": "your metrics",
    "train": "your data",
    "load": "the function that loads your clients' data",
}
"""What may be the caller's own, by its name in the client side."""


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
        self._workers: list[Child] = []
        try:
            for _ in range(count):
                self._workers.append(Child(_work, clients, patience=PATIENCE))
            for worker in self._workers:
                worker.receive()
        except BaseException as error:
            self.close()
            if not isinstance(error, EngineError | pickle.PicklingError | AttributeError | TypeError):
                raise
            raise EngineError(
                f"worker processes could not start ({error}): {_unsent(clients)} should be importable from a module, "
                "or be defined in a script's file before its first run; or use workers=1"
            ) from None

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the replies in order; an error of a client is raised when its turn has come."""
        for task, reply in zip(tasks, self._replies(round, tasks), strict=True):
            if isinstance(reply, Exception):
                raise reply
            yield replied(task, reply)

    def _replies(self, round: int, tasks: Sequence[Task]) -> Iterator[ClientResult | Exception]:
        """Yield the replies in order; a few wait their turn, however many clients there are."""
        idle, running, waiting = list(self._workers), dict[Child, int](), deque(enumerate(tasks))
        replies: dict[int, ClientResult | Exception] = {}
        turn = 0
        try:
            while turn < len(tasks):
                for worker in ready(running, block=turn not in replies):
                    replies[running.pop(worker)] = worker.receive()
                    idle.append(worker)
                while idle and waiting and waiting[0][0] < turn + 2 * len(self._workers):
                    number, task = waiting.popleft()
                    running[idle[-1]] = number
                    idle.pop().send((round, task))
                if turn in replies:
                    yield replies.pop(turn)
                    turn += 1
        except EngineError as error:
            raise EngineError(
                f"a worker process ended unexpectedly ({error}); nothing that was saved is lost: resume, with fewer "
                "--workers if memory was short"
            ) from None
        finally:
            if running:  # broken off: what they would still send belongs to no round
                self.close()

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.kill()
        self._workers = []


class Growing:
    """Runs clients in this process until those to come are worth the start of worker processes."""

    quorum = 0

    def __init__(self, clients: Clients, how: Start) -> None:
        self._clients, self._how = clients, how
        self._workers: Workers | None = None
        self._quickest = 0.0

    def run(self, round: int, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Yield the replies in order."""
        later = (self._how.rounds - round) * self._how.per_round
        for number, task in enumerate(tasks):
            saved = (1 - 1 / self._how.workers) * self._quickest * (len(tasks) - number + later)
            if self._workers is None and saved > START:
                self._workers = Workers(self._clients, self._how.workers)
            if self._workers is not None:
                yield from self._workers.run(round, tasks[number:])
                return
            begun = time.process_time()  # by the clock, a busy machine would seem worth more workers
            reply = replied(task, self._clients.run(round, task))
            took = time.process_time() - begun
            if not task.stage:  # later stages take next to nothing
                self._quickest = min(self._quickest or took, took)  # the first one also warms up
            yield reply

    def close(self) -> None:
        """End the worker processes, if any."""
        if self._workers is not None:
            self._workers.close()


def _unsent(part: Any) -> str:
    """Return what of the caller's own cannot be sent to another process, by its name in the client side."""
    for name, inner in getattr(part, "__dict__", {}).items():
        try:
            pickle.dumps(inner)
        except Exception:
            return _OWN.get(name) or _unsent(inner)
    return "network, data and functions of your own"


def _work(pipe: Connection, clients: Clients) -> None:
    """Answer broadcasts for as long as there are any."""
    pipe.send("ready")
    while True:
        round, task = pipe.recv()
        pipe.send(_reply(clients, round, task))


def _reply(clients: Clients, round: int, task: Task) -> ClientResult | Exception:
    try:
        return clients.run(round, task)
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - of this process
        except Exception:  # it cannot be sent
            return EngineError(f"client {task.client}: {type(error).__name__}: {error}")
        return error


def start(clients: Clients, how: Start) -> Sequential | Workers | Growing:
    """Start as many worker processes as there are to be, or none."""
    if how.workers == 1:
        return Sequential(clients)
    return Growing(clients, how) if how.at_leisure else Workers(clients, how.workers)


register(EngineSpec(name="inprocess", label="in process", about="this program and its worker processes", build=start))
