"""Try settings of FedPM, such as its rate, on training images that nobody trains on; test data are not looked at.

python -m benchmarks rates --task cifar10                              # the default, seed 100
python -m benchmarks rates --task cifar10 --set local.lr=0.167 --seed 101
python -m benchmarks rates --task mnist-2-of-10 --set aggregation.discount=0.5

Of the tasks, mnist-4-of-100 and the like have clients with at most 4 (or 2) classes, of 10, 50 or 100 clients. A line
has the accuracy after 1, 2, 3, 5, 10, … rounds, its mean over rounds 8 to 12 and over the last five, and MB both ways.
"""

import argparse
import json
from statistics import fmean
from typing import Any

SMALL: dict[str, Any] = {"model.name": "conv4-slim", "rounds": 25, "local.batch_size": 64}
SKEWED = {**SMALL, "local.batch_size": 8, "data.split": "classes"}
SAMPLED = {10: 10, 50: 5, 100: 20}
"""Who takes part in a round, of so many clients."""
TASKS: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "digits": ("quickstart", "digits", 1150, 280, {"rounds": 20, "local.batch_size": 64}),
    "mnist": ("mnist-conv4", "mnist", 1500, 4000, SMALL),
    "emnist": ("emnist-conv4", "emnist", 2500, 4000, {**SMALL, "rounds": 20, "local.batch_size": 16}),
    "cifar10": (
        "cifar10-conv6", "cifar10", 2000, 3000, {"model.name": "conv6-slim", "rounds": 20, "local.batch_size": 16}
    ),
    **{
        f"mnist-{classes}-of-{total}": (
            "mnist-conv4", "mnist", 1500, 4000,
            {**SKEWED, "data.classes_per_client": classes, "clients.total": total, "clients.sampled": sampled},
        )
        for classes in (4, 2)
        for total, sampled in SAMPLED.items()
    },
}  # fmt: skip
"""A preset, data, how many of its training examples are trained on and how many are tested on, and settings."""
OURS = {"algorithm": "fedpm", "model.init": "zero-sum", "fedpm.effort": "rounds", "codec": "auto", "workers": 1}


def score(task: str, seed: int, chosen: list[str]) -> dict[str, Any]:
    """Run one setting and return what was learned."""
    import numpy as np

    import fedpm

    preset, name, examples, tested, settings = TASKS[task]
    loaded = fedpm.load_dataset(name)
    order = np.random.default_rng(seed).permutation(len(loaded.train.y))
    kept, held = order[:examples], order[examples : examples + tested]
    x, y = loaded.train.x, loaded.train.y
    data = fedpm.dataset(train=(x[kept], y[kept]), test=(x[held], y[held]), classes=loaded.classes)
    before = [f"{key}={json.dumps(value)}" for key, value in {**settings, **OURS, "seed": seed}.items()]
    rounds = fedpm.run(fedpm.load_config(preset, before + chosen), data=data, progress=False).rounds
    accuracy = [record["accuracy"] for record in rounds]
    sent = sum(record["uplink_bytes"] + record["downlink_bytes"] for record in rounds)
    return {
        "task": task, "settings": chosen, "seed": seed,
        "accuracy": {at + 1: found for at, found in enumerate(accuracy) if at < 3 or at % 5 == 4},
        "rounds_8_to_12": mean(accuracy[7:12]), "last_five": mean(accuracy[-5:]),
        "mb": round(sent / 1e6, 2),
    }  # fmt: skip


def mean(accuracies: list[float]) -> float | None:
    """Return the mean, if a run was long enough to have one."""
    return round(fmean(accuracies), 4) if accuracies else None


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run one setting, and print a line of JSON."""
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="chosen")
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args(arguments)
    print(json.dumps(score(options.task, options.seed, options.chosen)))
