"""FedPM with differential privacy on the embedded digits: accuracy against ε (docs/privacy.md).

python -m benchmarks private_digits --tune             # settings, by validation accuracy on seeds that are not reported
python -m benchmarks private_digits                    # test accuracy on seeds 0, 1, 2
python -m benchmarks private_digits --unit client      # only that guarantee
"""

import argparse
import itertools
import statistics
from dataclasses import replace
from typing import Any

from torch import nn

import fedpm
from fedpm.data.datasets import Dataset, Shard, digits

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"rounds": 20, "local.epochs": 10},
    "example": {"rounds": 10, "local.epochs": 5},
    "client": {"rounds": 10, "local.epochs": 10},
}
"""Of private runs by validation accuracy (--tune), which chose the default of local.lr too."""
CASES = [(unit, n, e) for unit, es in (("none", (0,)), ("example", (8, 3))) for n in (10, 2) for e in es]
TUNING_SEEDS = (100, 101, 102)
SEEDS = (0, 1, 2)


def network(kind: str) -> nn.Module:
    """Return a network with 9,610 parameters: ``plain``, or one whose layers get inputs around zero, ``centred``."""
    if kind == "plain":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    norm = nn.LayerNorm(128, elementwise_affine=False)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), norm, nn.Linear(128, 10))


def examples(kind: str, config: fedpm.Config) -> Dataset:
    """Return the digits; ``centred`` around the mean of those that the server holds out, which no client owns."""
    data = digits()
    if kind == "plain":
        return data
    _, held_out = data.holding_out(config.data.validation, config.seed)
    mean = held_out.x.mean(axis=0)
    train, test = (Shard(part.x - mean, part.y) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


def train(seed: int, kind: str, unit: str, clients: int, epsilon: float, **settings: Any) -> fedpm.Result:
    """Train with or without privacy."""
    keys = {"seed": seed, "clients.total": clients, "workers": 1, **SETTINGS[unit], **settings}
    if unit != "none":
        keys |= {"privacy.unit": unit, "privacy.epsilon": epsilon}
    config = fedpm.load_config("quickstart", [f"{key}={value}" for key, value in keys.items()])
    return fedpm.run(config, net=network(kind), data=examples(kind, config))


def validation(result: fedpm.Result) -> float:
    """Return the validation accuracy of the mask that would be shipped."""
    return float(result.summary["validation_accuracy"][result.summary["mode"]])


def tune() -> None:
    """Print the validation accuracy of some settings, mean over seeds."""
    for kind, clients, epsilon in itertools.product(("plain", "centred"), (10, 2), (8, 3)):
        for travel in (0.8, 1.2, 1.6):
            settings = {"local.lr": travel / SETTINGS["example"]["local.epochs"] ** 0.5}
            found = [validation(train(seed, kind, "example", clients, epsilon, **settings)) for seed in TUNING_SEEDS]
            case = f"{kind}  {clients} clients  ε {epsilon}  lr · √steps {travel}"
            print(f"{case}  validation {statistics.mean(found):.3f}", flush=True)


def report(only: str | None) -> None:
    """Print test accuracy, mean and standard deviation over seeds, and bits sent up, as Markdown."""
    print("| network | unit | clients | ε | test accuracy | of each seed | bpp up |\n|---|---|---|---|---|---|---|")
    cases = [(kind, *case) for kind in ("plain", "centred") for case in CASES]
    for kind, unit, clients, epsilon in [*cases, ("plain", "client", 10, 8)]:
        if only in (None, unit):
            results = [train(seed, kind, unit, clients, epsilon) for seed in SEEDS]
            accuracy = [result.summary["accuracy"] for result in results]
            bits = statistics.mean(result.summary["uplink_bpp"] for result in results)
            each = ", ".join(f"{value:.3f}" for value in accuracy)
            score = f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}"
            print(f"| {kind} | {unit} | {clients} | {epsilon or '∞'} | {score} | {each} | {bits:.3f} |", flush=True)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print the table of docs/privacy.md, or find its settings."""
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--unit", choices=list(SETTINGS))
    options = parser.parse_args(arguments)
    tune() if options.tune else report(options.unit)
