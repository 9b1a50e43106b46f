"""Clients that fail as a broadcast says; worker processes import this module without torch, which takes seconds."""

import os
import signal
import time
from dataclasses import dataclass, field

from fedpm.engines.base import Task
from fedpm.errors import FedPMError
from fedpm.methods.base import ClientResult


class UnsentError(Exception):
    """An error that pickle cannot make again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@dataclass(frozen=True)
class Misbehaving:
    """The client side of an experiment, as far as engines know it."""

    modes: tuple[object, ...] = field(default=())

    def run(self, round: int, task: Task) -> ClientResult:
        if task.waiting is not None:
            return task.waiting.answer(task.broadcast)
        if task.broadcast == b"dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.broadcast == b"hangs":
            time.sleep(600)
        if task.broadcast == b"computes":
            end = time.process_time() + 2
            while time.process_time() < end:
                pass
        if task.broadcast == b"raises":
            raise FedPMError("no luck")
        if task.broadcast == b"lacks a file":
            raise FileNotFoundError(2, "no such file", "images.npy")
        if task.broadcast == b"raises what cannot be sent":
            raise UnsentError("no", "luck")
        return ClientResult(task.broadcast)


class Fatal:
    """Ends the process that makes it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)
