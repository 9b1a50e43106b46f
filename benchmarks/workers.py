"""What two worker processes gain over one, and over one with two threads."""

from collections.abc import Callable
from functools import partial

from benchmarks.experiments import NETWORKS, noise_experiment
from benchmarks.timing import Row, timed
from fedpm.engines.base import Engine, Task
from fedpm.experiment.build import Experiment, start_engine

CLIENTS = 4


def run() -> list[Row]:
    """Measure a round of training for every network, by the clock."""
    return [measure(network) for network in NETWORKS]


def measure(network: str) -> Row:
    """Return the ratios of one network."""
    settings = {"1 worker": (1, 1), "2 workers": (2, 1), "2 threads": (1, 2)}
    epochs = 8 if " 8×8" in network else 1
    experiments = {
        name: noise_experiment(network, CLIENTS, steps=2, epochs=epochs, workers=workers, local={"threads": n})
        for name, (workers, n) in settings.items()
    }
    engines = {name: start_engine(experiment) for name, experiment in experiments.items()}
    try:
        cases: dict[str, Callable[[], object]] = {
            name: partial(_train, experiments[name], engine) for name, engine in engines.items()
        }
        for train in cases.values():
            train()  # workers import and warm up
        seconds = timed(cases, repeats=5)
    finally:
        for engine in engines.values():
            engine.close()
    return {
        "network": network,
        "1 worker / 2 workers": seconds["1 worker"] / seconds["2 workers"],
        "2 threads / 2 workers": seconds["2 threads"] / seconds["2 workers"],
        **{f"{name} s": value for name, value in seconds.items()},
    }


def _train(experiment: Experiment, engine: Engine) -> None:
    broadcast = experiment.method.broadcast(experiment.method.init()).payload
    for _ in engine.run(1, [Task(client, broadcast) for client in range(CLIENTS)]):
        pass
