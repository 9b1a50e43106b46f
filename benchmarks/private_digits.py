"""FedPM with sample-level differential privacy on the embedded digits: accuracy against ε (docs/privacy.md).

python -m benchmarks.private_digits --tune      # settings, by validation accuracy on seeds that are not reported
python -m benchmarks.private_digits             # test accuracy on seeds 0, 1, 2
"""

import argparse
import itertools
import statistics
from typing import Any

from torch import nn

import fedpm
from fedpm.data.datasets import digits

CHOSEN = {8: {"rounds": 10, "local.lr": 0.4}, 3: {"rounds": 5, "local.lr": 0.4}}
"""By validation accuracy (--tune)."""
TUNING_SEEDS = (100, 101, 102)
SEEDS = (0, 1, 2)


def network() -> nn.Module:
    """Return a network with 9,610 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(seed: int, clients: int, epsilon: float | None, **settings: Any) -> fedpm.Result:
    """Train with or without privacy."""
    keys = {"seed": seed, "clients.total": clients, "workers": 1, "local.epochs": 10, **settings}
    if epsilon is not None:
        keys |= {"privacy.unit": "example", "privacy.epsilon": epsilon}
    config = fedpm.load_config("quickstart", [f"{key}={value}" for key, value in keys.items()])
    return fedpm.run(config, net=network(), data=digits())


def validation(result: fedpm.Result) -> float:
    """Return the validation accuracy of the mask that would be shipped."""
    return float(result.summary["validation_accuracy"][result.summary["mode"]])


def tune() -> None:
    """Print the validation accuracy of some settings, mean over seeds."""
    for epsilon, rounds, lr in itertools.product((8, 3), (5, 10), (0.3, 0.4, 0.6)):
        found = [validation(train(s, 10, epsilon, **{"rounds": rounds, "local.lr": lr})) for s in TUNING_SEEDS]
        print(f"ε {epsilon}  rounds {rounds}  lr {lr}  validation {statistics.mean(found):.3f}", flush=True)


def report() -> None:
    """Print test accuracy, mean and standard deviation over seeds, and bits sent up."""
    for clients, epsilon in itertools.product((10, 2), (None, 8, 3)):
        settings = {"rounds": 20} if epsilon is None else CHOSEN[epsilon]
        results = [train(seed, clients, epsilon, **settings) for seed in SEEDS]
        accuracy = [result.summary["accuracy"] for result in results]
        bits = statistics.mean(result.summary["uplink_bpp"] for result in results)
        spent = max((result.summary.get("privacy", {}).get("epsilon", 0) for result in results), default=0)
        print(
            f"{clients} clients  ε {epsilon or 'none'} (spent {spent:.3f})  accuracy {statistics.mean(accuracy):.3f} ± "
            f"{statistics.stdev(accuracy):.3f} ({', '.join(f'{a:.3f}' for a in accuracy)})  up {bits:.3f} bpp",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    tune() if parser.parse_args().tune else report()
