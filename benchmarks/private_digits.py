"""FedPM with differential privacy on the embedded digits: accuracy against ε (docs/privacy.md).

python -m benchmarks private_digits --tune             # settings, by validation accuracy on seeds that are not reported
python -m benchmarks private_digits                    # test accuracy on seeds 0, 1, 2
python -m benchmarks private_digits --unit client      # only that guarantee
"""

import argparse
import itertools
import statistics
from typing import Any

from torch import nn

import fedpm
from fedpm.data.datasets import digits

ROUNDS = {"none": 20, "example": 10, "client": 10}
"""Of private runs by validation accuracy (--tune), which chose the default of local.lr too."""
CASES = [(unit, n, e) for unit, es in (("none", (0,)), ("example", (8, 3))) for n in (10, 2) for e in es]
CASES.append(("client", 10, 8))
TUNING_SEEDS = (100, 101, 102)
SEEDS = (0, 1, 2)


def network() -> nn.Module:
    """Return a network with 9,610 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(seed: int, unit: str, clients: int, epsilon: float, **settings: Any) -> fedpm.Result:
    """Train with or without privacy."""
    keys = {"seed": seed, "clients.total": clients, "workers": 1, "local.epochs": 10, **settings}
    if unit != "none":
        keys |= {"privacy.unit": unit, "privacy.epsilon": epsilon}
    config = fedpm.load_config("quickstart", [f"{key}={value}" for key, value in keys.items()])
    return fedpm.run(config, net=network(), data=digits())


def validation(result: fedpm.Result) -> float:
    """Return the validation accuracy of the mask that would be shipped."""
    return float(result.summary["validation_accuracy"][result.summary["mode"]])


def tune() -> None:
    """Print the validation accuracy of some settings, mean over seeds."""
    for epsilon, rounds, lr in itertools.product((8, 3), (5, 10), (0.3, 0.4, 0.6)):
        settings = {"rounds": rounds, "local.lr": lr}
        accuracy = [validation(train(seed, "example", 10, epsilon, **settings)) for seed in TUNING_SEEDS]
        print(f"ε {epsilon}  rounds {rounds}  lr {lr}  validation {statistics.mean(accuracy):.3f}", flush=True)


def report(only: str | None) -> None:
    """Print test accuracy, mean and standard deviation over seeds, and bits sent up, as Markdown."""
    print("| unit | clients | ε | test accuracy | of each seed | bpp up |\n|---|---|---|---|---|---|")
    for unit, clients, epsilon in CASES:
        if only in (None, unit):
            results = [train(seed, unit, clients, epsilon, rounds=ROUNDS[unit]) for seed in SEEDS]
            accuracy = [result.summary["accuracy"] for result in results]
            bits = statistics.mean(result.summary["uplink_bpp"] for result in results)
            each = ", ".join(f"{value:.3f}" for value in accuracy)
            score = f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}"
            print(f"| {unit} | {clients} | {epsilon or '∞'} | {score} | {each} | {bits:.3f} |", flush=True)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print the table of docs/privacy.md, or find its settings."""
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--unit", choices=list(ROUNDS))
    options = parser.parse_args(arguments)
    tune() if options.tune else report(options.unit)
