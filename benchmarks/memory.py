"""Whether memory grows over the rounds of a run, and how much a round of a large network needs."""

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

from benchmarks.experiments import LARGE, fedpm_of, noise_experiment
from benchmarks.round import advance
from benchmarks.timing import Row
from fedpm.config import parse
from fedpm.experiment.api import run as run_experiment

ROUNDS = 200


def run() -> list[Row]:
    """Measure the memory after each of many short rounds, and the most that a round of each large network takes."""
    return [growth(), *({"case": f"a round of {network}", "peak MB": _peak_alone(network) / 1e6} for network in LARGE)]


def growth(count: int = ROUNDS) -> Row:
    """Return how the memory that is in use after a round grows."""
    used: list[int] = []
    config = parse(
        {
            "rounds": count,
            "workers": 1,
            "clients": {"total": 4, "sampled": 2},
            "data": {"train_examples": 80, "test_examples": 40},
            "local": {"epochs": 1},
        }
    )
    run_experiment(config, on_round=lambda record: used.append(resident()))
    quarters = [used[start * count // 4 : (start + 1) * count // 4] for start in range(4)]
    return {
        "case": f"{count} short rounds",
        "last / second quarter": mean(quarters[3]) / mean(quarters[1]),
        **{f"quarter {number} MB": mean(quarter) / 1e6 for number, quarter in enumerate(quarters, 1)},
    }


def peak(network: str) -> int:
    """Return the most bytes that this process has had in use, after a round of two clients with a step each."""
    experiment = noise_experiment(network, clients=2, steps=1)
    advance(experiment, fedpm_of(experiment).init())
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _peak_alone(network: str) -> int:
    """Measure a round in a process of its own, which has had nothing else in memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(peak, network).result()


def resident() -> int:
    """Return the bytes of memory that this process has in use (Linux)."""
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
