"""Scores of networks on examples that clients hold out: counted there, averaged by the server.

An answer holds, for each part that the client has (validation, test) and each mode of the method: the number of
examples, the mean loss, each metric, and of each class how many were met of how many; all as 64-bit floats, deflated.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpm.engines.base import Clients, Task
from fedpm.errors import WireError
from fedpm.methods.base import Method
from fedpm.training.evaluation import Score, evaluate
from fedpm.training.local import CPU
from fedpm.training.task import Task as TrainingTask
from fedpm.wire.message import Kind, Message

Scores = dict[str, dict[str, Score]]
"""By part (validation, test) and mode."""
_PARTS = ("validation", "test")
_MOST = 2**22  # bytes of scores that are read


def write_scores(clients: Clients, round: int, task: Task) -> bytes:
    """Score what a client was sent on what it holds out, and return its answer."""
    if clients.held is None:
        raise WireError(
            "this client holds out no examples to score on; set evaluation.at = 'clients' there too", "error"
        )
    method, judged = clients.method, clients.held.task
    state = method.received(task.broadcast, round, task.memory)
    numbers: list[float] = []
    for what, shard in clients.held.of(task.client).items():
        modes = method.final_modes if what == "test" else method.modes
        for mode in modes if len(shard) else ():
            numbers += _numbers(_PARTS.index(what), evaluate(method.module(state, mode), shard, CPU, judged), judged)
    coded = zlib.compress(np.array(numbers, "<f8").tobytes(), 9)
    fingerprint = method.network.fingerprint(clients.streams.seed)
    nothing = np.zeros(0, np.float32)
    return Message(Kind.SCORES, 0, fingerprint, round, task.client, coded, nothing).to_bytes()


def _numbers(part: int, score: Score, task: TrainingTask) -> list[float]:
    tallies = [float(number) for each in score.classes for number in each] if part else []
    head = [float(part), float(score.count), score.loss, *(score.values[metric.name] for metric in task.metrics)]
    return [*head, float(len(tallies)), *tallies]


def read_scores(
    method: Method[Any, Any], task: TrainingTask, classes: int, *, seed: int, round: int, client: int, payload: bytes
) -> Scores:
    """Return the scores that a client sent, or raise WireError: it may have sent anything."""
    message = Message.from_bytes(payload)
    message.expect(Kind.SCORES, method.network.fingerprint(seed), round, client, 0)
    found: Scores = {}
    modes = {"validation": method.modes, "test": method.final_modes}
    fixed = 3 + len(task.metrics)
    try:
        numbers = np.frombuffer(zlib.decompressobj().decompress(message.coded, _MOST), "<f8").tolist()
        while numbers:
            part, count, loss, *values = numbers[:fixed]
            size = int(numbers[fixed])
            tallies, numbers = numbers[fixed + 1 : fixed + 1 + size], numbers[fixed + 1 + size :]
            if part not in (0, 1) or not (count >= 1 and count == int(count) and len(tallies) == size >= 0):
                raise ValueError
            each = [(int(met), int(there)) for met, there in zip(tallies[::2], tallies[1::2], strict=True)]
            each += [(0, 0)] * (classes - len(each) if each else 0)
            if any(not 0 <= met <= there for met, there in each):
                raise ValueError
            named = dict(zip([metric.name for metric in task.metrics], values, strict=True))
            of_part = found.setdefault(what := _PARTS[int(part)], {})
            of_part[modes[what][len(of_part)]] = Score(task, named, loss, int(count), tuple(each[:classes]))
        if any(set(scores) != set(modes[what]) for what, scores in found.items()):
            raise ValueError
    except (ValueError, IndexError, OverflowError, zlib.error):
        raise WireError("scores that cannot be read: of another task, or of another program") from None
    return found


def by_mode(answers: Mapping[int, Scores], part: str) -> dict[str, list[Score]]:
    """Return the scores of all clients that have a part, by mode."""
    having = [scores[part] for scores in answers.values() if part in scores]
    return {mode: [scores[mode] for scores in having] for mode in (having[0] if having else ())}
