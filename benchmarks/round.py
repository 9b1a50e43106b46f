"""What a whole round costs beside its bare training steps, and beside research code."""

from collections.abc import Callable

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.research_code import ResearchNetwork, train_round
from benchmarks.timing import Row, timed
from fedpm.engines.base import Task
from fedpm.engines.inprocess import Sequential
from fedpm.experiment.build import Experiment
from fedpm.methods.mask.fedpm import CLAMP, FedPMState
from fedpm.training.local import threads, train_scores

NETWORK = "CONV-4, 28×28"
CLIENTS, EPOCHS = 10, 3


def run() -> list[Row]:
    """Measure a round of 10 clients with 3 local epochs, a step each; coding and aggregation included."""
    experiment = noise_experiment(NETWORK, CLIENTS, steps=1, epochs=EPOCHS)
    algorithm, clients = fedpm_of(experiment), experiment.clients
    shards = [clients.train.take(part) for part in clients.parts]
    state = advance(experiment, algorithm.init())

    def bare() -> None:
        """Train as the clients of the round do."""
        theta = algorithm.posterior(state).mode().clip(CLAMP, 1 - CLAMP)
        weights = algorithm.masked.weights(0)
        for client, shard in enumerate(shards):
            rng = clients.streams.at(state.round + 1, client)
            train_scores(algorithm.masked, weights, theta, state.stats, shard, rng, algorithm.local)

    cases: dict[str, Callable[[], object]] = {"round": lambda: advance(experiment, state), "bare steps": bare}
    research = ResearchNetwork(algorithm.masked)
    cases["research code"] = lambda: train_round(research, shards, EPOCHS, algorithm.local.batch_size)
    with threads(1):
        seconds = timed(cases, repeats=3, cpu=True)
    return [
        {
            "case": f"{NETWORK}, {CLIENTS} clients, {EPOCHS} epochs",
            "round / bare steps": seconds["round"] / seconds["bare steps"],
            "research code / round": seconds["research code"] / seconds["round"],
            **{f"{name} s": value for name, value in seconds.items()},
        }
    ]


def advance(experiment: Experiment, state: FedPMState) -> FedPMState:
    """Run a round of all clients, but for the scores of the global model."""
    algorithm = fedpm_of(experiment)
    broadcast = algorithm.broadcast(state).payload
    replies = Sequential(experiment.clients).run(
        state.round + 1, [Task(client, broadcast) for client in range(len(experiment.clients.parts))]
    )
    return algorithm.aggregate(state, (algorithm.decode(state, client, reply.payload) for client, reply in replies))
