"""What running frozen lower layers once saves a client: a round of MiniLM's last two blocks with and without."""

from functools import partial

import numpy as np
import torch

from benchmarks.timing import Row, timed
from fedpm.config import parse
from fedpm.data.datasets import dataset
from fedpm.engines.base import Task
from fedpm.experiment.build import Experiment, build
from fedpm.model.minilm import VOCABULARY, minilm
from fedpm.model.variants import VARIANTS
from fedpm.rng import Streams
from fedpm.training.device import threads

EXAMPLES, TOKENS, TOPICS = 32, 48, 8


def run() -> list[Row]:
    """Measure a client's round in processor time of one core."""
    with threads(1):
        made = {name: experiment(cache=name == "cached") for name in ("not cached", "cached")}
        start = made["cached"].method
        task = Task(0, start.broadcast(start.init()).payload)
        cases = {name: partial(one.clients.run, 1, task) for name, one in made.items()}
        same = cases["cached"]().payload == cases["not cached"]().payload
        seconds = timed(cases, repeats=5, cpu=True)
    return [
        {
            "client": f"{EXAMPLES} texts of {TOKENS} tokens, two steps",
            "not cached / cached": seconds["not cached"] / seconds["cached"],
            **{f"{name} s": seconds[name] for name in cases},
            "same upload": same,
        }
    ]


def experiment(*, cache: bool) -> Experiment:
    """Return one client with texts of noise and MiniLM with values of chance."""
    torch.manual_seed(0)
    draws = Streams(1).uint32("texts", (EXAMPLES + 12) * TOKENS).reshape(-1, TOKENS) % (VOCABULARY - 1) + 1
    texts, topics = draws.astype(np.int64), np.arange(EXAMPLES + 12) % TOPICS
    data = dataset((texts[:-4], topics[:-4]), (texts[-4:], topics[-4:]))
    config = parse(
        {
            "model": {"name": "own", "weights": "given"},
            "data": {"name": "own", "validation": 8 / (EXAMPLES + 8)},
            "clients": {"total": 1},
            "local": {"epochs": 1, "batch_size": EXAMPLES // 2, "cache": cache},
        }
    )
    kinds = VARIANTS["minilm"]
    return build(config, net=minilm(TOPICS), data=data, frozen=kinds.frozen, trained=kinds.trained)
