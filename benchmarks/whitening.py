"""What evening out gradients adds to a step of a client (processor time of one core)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.timing import Row, timed
from fedpm.data.datasets import Shard
from fedpm.model import nets
from fedpm.model.masking import MaskedNetwork
from fedpm.rng import Streams
from fedpm.training.device import choose_precision, threads
from fedpm.training.local import CPU, Local
from fedpm.training.scores import ScoreTrainer

CASES = [("conv4-slim", (1, 28, 28), 64), ("conv6-slim", (3, 32, 32), 16), ("conv4", (1, 8, 8), 64)]
CASES += [("conv4", (1, 28, 28), 128)]
"""A network, its input and the examples of a step."""


def run() -> list[Row]:
    """Measure every case in float32, and in what this machine trains in if that is another."""
    with threads(1):
        return [
            measure(*case, precision)
            for case in CASES
            for precision in sorted({torch.float32, choose_precision("auto", CPU)}, key=str)
        ]


def measure(name: str, shape: tuple[int, ...], batch: int, precision: torch.dtype) -> Row:
    """Return the ratio of two steps with whitening to two without."""
    network, rng = MaskedNetwork(nets.build(name, shape, 10)), np.random.default_rng(0)
    shard = Shard(rng.integers(0, 256, (2 * batch, *shape), dtype=np.uint8), rng.integers(0, 10, 2 * batch))
    plain = Local(epochs=1, batch_size=batch, lr=0.1, forward="expected", precision=precision)
    frozen, theta = network.weights(0), np.full(network.size, 0.5, np.float32)

    def training(local: Local) -> Callable[[], object]:
        train = ScoreTrainer(network, local).train
        return partial(train, theta, frozen=frozen, stats=network.initial_stats(), shard=shard, rng=Streams(1).at(1, 0))

    cases = {"whitened": training(replace(plain, whiten=True)), "plain": training(plain)}
    seconds = timed(cases, repeats=5, cpu=True)
    return {
        "network": f"{name}, {'×'.join(map(str, shape))}, batch {batch}",
        "precision": str(precision).removeprefix("torch."),
        "whitened / plain": seconds["whitened"] / seconds["plain"],
        "plain ms a step": 500 * seconds["plain"],
    }
