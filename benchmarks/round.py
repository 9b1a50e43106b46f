"""What a whole round costs beside its bare training steps, and beside research code."""

from collections.abc import Callable, Iterator

from benchmarks.experiments import fedpm_of, noise_experiment
from benchmarks.research_code import ResearchNetwork, train_round
from benchmarks.timing import Row, timed
from fedpm.engines.base import Task
from fedpm.engines.inprocess import Sequential
from fedpm.experiment.build import Experiment
from fedpm.methods.base import ClientResult
from fedpm.methods.mask.fedpm import CLAMP
from fedpm.methods.mask.state import MaskState, MaskUpdate
from fedpm.training.device import threads

NETWORK = "CONV-4, 28×28"
CLIENTS, EPOCHS = 10, 3


def run() -> list[Row]:
    """Measure a round of 10 clients with 3 local epochs, a step each; coding and aggregation included."""
    experiment = noise_experiment(NETWORK, CLIENTS, steps=1, epochs=EPOCHS)
    method, clients = fedpm_of(experiment), experiment.clients
    shards = [clients.train.take(part) for part in clients.parts]
    state = advance(experiment, method.init())

    def bare() -> None:
        """Train as the clients of the round do."""
        theta = state.posterior.theta.floats().clip(CLAMP, 1 - CLAMP)
        frozen = method.network.weights(0)
        for client, shard in enumerate(shards):
            rng = clients.streams.at(state.round + 1, client)
            method.trainer.train(theta, frozen=frozen, stats=state.stats, shard=shard, rng=rng)

    cases: dict[str, Callable[[], object]] = {"round": lambda: advance(experiment, state), "bare steps": bare}
    research = ResearchNetwork(method.network)
    cases["research code"] = lambda: train_round(research, shards, EPOCHS, method.trainer.local.batch_size)
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


def advance(experiment: Experiment, state: MaskState) -> MaskState:
    """Run a round of all clients, but for the scores of the global model.

    The broadcast that is coded is the one that follows: a state keeps its own, and rounds here may share one.
    """
    method = fedpm_of(experiment)
    broadcast = method.broadcast(state).payload
    tasks = [Task(client, broadcast) for client in range(len(experiment.clients.parts))]

    def updates() -> Iterator[MaskUpdate]:
        for reply in Sequential(experiment.clients).run(state.round + 1, tasks):
            if isinstance(reply.answer, ClientResult):  # always: a client of this process cannot go missing
                yield method.decode(state, reply.client, reply.answer.payload)

    after = method.aggregate(state, updates())
    method.broadcast(after)
    return after
