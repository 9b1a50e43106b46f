"""A million clients on one machine: processor time of a client's round, and memory, by N, K and rounds."""

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import process_time
from typing import Any

import numpy as np
from torch import nn

from benchmarks.memory import resident
from benchmarks.timing import Row
from fedpm.config import parse
from fedpm.data.ondemand import on_demand
from fedpm.experiment.api import run as run_experiment
from fedpm.rng import Streams

EXAMPLES, SHAPE = 20, (1, 8, 8)
CASES = [(1_000, 100, 3), (1_000_000, 100, 3), (1_000_000, 1_000, 3), (1_000_000, 100, 30)]
"""Clients that there are, of which so many take part in each of so many rounds."""


def run() -> list[Row]:
    """Measure each case in a process of its own, which has had nothing else in memory."""
    return [_alone(case) for case in CASES]


def load(client: int) -> tuple[Any, Any]:
    """Return what a client has: images that are brighter the higher their class."""
    draws = Streams(1).at(0, client).uint8("images", EXAMPLES * int(np.prod(SHAPE))).reshape(EXAMPLES, *SHAPE)
    labels = (np.arange(EXAMPLES) + client) % 10
    return (draws // 4 + 19 * labels[:, None, None, None]).astype(np.uint8), labels


def network() -> nn.Module:
    """Return a small network, of 2,410 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def measure(total: int, sampled: int, rounds: int) -> Row:
    """Run, and return what each client and round took of the processor, and the memory in use after rounds."""
    used: list[int] = []
    settings = {"clients": {"total": total, "sampled": sampled}, "local": {"epochs": 1, "batch_size": EXAMPLES}}
    data = on_demand(load, total, validation=load(2**32 - 3), test=load(2**32 - 2))
    run_experiment(parse({"rounds": 1, "workers": 1, **settings}), net=network(), data=data)  # what is done but once
    begun = process_time()
    result = run_experiment(
        parse({"rounds": rounds, "workers": 1, **settings}),
        net=network(),
        data=data,
        on_round=lambda record: used.append(resident()),
    )
    spent = process_time() - begun
    return {
        "clients": total,
        "of a round": sampled,
        "rounds": rounds,
        "ms of the processor a client and round": 1000 * spent / (sampled * rounds),
        "MB after the first round": used[0] / 1e6,
        "after the last": used[-1] / 1e6,
        "at the most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "accuracy": result.rounds[-1]["accuracy"],
    }


def _alone(case: tuple[int, int, int]) -> Row:
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(measure, *case).result()
