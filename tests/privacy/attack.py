"""What a server could recompute: the draws of a client, if they follow from the seed that both know."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpm.engines.base import Task
from fedpm.experiment.build import Experiment
from fedpm.rng import Streams
from fedpm.training.local import Local, Trained
from fedpm.wire.masks import sample_mask, upload_uniform
from fedpm.wire.theta import Vector


@dataclass(frozen=True)
class Overheard:
    """A trainer that lets an onlooker see every θ_k."""

    trainer: Any
    thetas: list[Vector] = field(default_factory=list)

    @property
    def local(self) -> Local:
        local: Local = self.trainer.local
        return local

    def train(self, theta: Vector, **given: Any) -> Trained:
        trained: Trained = self.trainer.train(theta, **given)
        self.thetas.append(trained.values)
        return trained


def explained(experiment: Experiment, client: int = 0) -> tuple[float, float]:
    """Return which share of an upload's bits follows from θ_k and the u of the seed, and which would by chance."""
    method: Any = experiment.method
    overheard = Overheard(method.trainer)
    clients = replace(experiment.clients, method=replace(method, trainer=overheard))
    state = method.init()
    upload = clients.run(1, Task(client, method.broadcast(state).payload)).payload
    (theta,) = overheard.thetas
    guess = sample_mask(theta, upload_uniform(Streams(experiment.seed).at(1, client), len(theta)))
    chance = theta.astype(np.float64) ** 2 + (1 - theta.astype(np.float64)) ** 2
    return float(np.mean(guess == method.decode(state, client, upload).mask)), float(chance.mean())
