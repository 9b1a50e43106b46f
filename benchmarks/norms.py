"""What the statistics of norm layers add to an upload of ResNet-18, beside its mask."""

import numpy as np

from benchmarks.experiments import fedpm_of, noise_images
from benchmarks.timing import Row
from fedpm.config import parse
from fedpm.engines.base import Task
from fedpm.engines.inprocess import Sequential
from fedpm.experiment.build import build
from fedpm.methods.base import ClientResult
from fedpm.wire.message import OVERHEAD, Message

CASES = {"resnet18-slim": (2, 4, 5), "resnet18": (2, 2, 1)}
"""Networks with how many clients, steps of an epoch and rounds."""
MOST = 1.2


def run(cases: dict[str, tuple[int, int, int]] = CASES) -> list[Row]:
    """Train few steps on noise, in minibatches of 16, and take uploads of the default coder apart."""
    return [row for name, (clients, steps, rounds) in cases.items() for row in _uploads(name, clients, steps, rounds)]


def _uploads(name: str, clients: int, steps: int, rounds: int) -> list[Row]:
    examples = clients * steps * 16
    config = parse(
        {
            "model": {"name": name},
            "clients": {"total": clients},
            "data": {"validation": 1 / (examples + 1)},
            "local": {"epochs": 1, "batch_size": 16},
        }
    )
    experiment = build(config, data=noise_images((3, 32, 32), examples + 1))
    method, engine = fedpm_of(experiment), Sequential(experiment.clients)
    state, rows = method.init(), []
    for number in range(1, rounds + 1):
        tasks = [Task(client, method.broadcast(state).payload) for client in range(clients)]
        answers = [reply.answer for reply in engine.run(number, tasks)]
        uploads = [answer.payload for answer in answers if isinstance(answer, ClientResult)]
        messages = [Message.from_bytes(upload) for upload in uploads]
        masks = float(np.mean([len(message.coded) for message in messages]))
        floats = float(np.mean([len(message.floats) for message in messages]))
        rows.append(
            {
                "network": name,
                "coder": method.coding.name,
                "round": number,
                "mask bytes": masks,
                "bytes of statistics": floats,
                "bits a statistic": 8 * floats / method.network.stats_size,
                "upload / mask": (OVERHEAD + masks + floats) / masks,
            }
        )
        updates = [method.decode(state, client, upload) for client, upload in enumerate(uploads)]
        state = method.aggregate(state, iter(updates))
    return rows
