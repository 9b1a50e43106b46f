"""Find rates for each algorithm on validation data of the digits, or of a part of MNIST.

python -m benchmarks tune --out tune.jsonl                 # every grid below: 20 minutes on 2 cores
python -m benchmarks tune --out tune.jsonl --only qsgd     # one algorithm
python -m benchmarks tune --out tune.jsonl --table         # only show what was found, as Markdown
python -m benchmarks tune --out tune-mnist.jsonl --task mnist --only fedmrn

A setting that the file holds already is not run again. The score is the accuracy on validation data, which no client
trains on, averaged over the last three rounds and the seeds; ties go to the lower loss of training.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

COMMON = ["workers=1", "clients.total=10"]
SMALL_MNIST = ["data.name=mnist", "data.train_examples=1500", "data.test_examples=1000", "local.batch_size=64"]
TASKS: dict[str, tuple[list[str], int]] = {
    "digits": (["model.name=conv4", "data.name=digits"], 6),
    "slim": (["model.name=conv4-slim", "data.name=digits"], 10),
    "mnist": (["model.name=conv4-slim", *SMALL_MNIST], 25),
}
"""What is learned, and in how many rounds."""
SGD, ADAM = "sgd", "adam"
UNBIASED: list[dict[str, list[Any]]] = [
    {"dense.optimiser": [ADAM], "local.lr": [0.001, 0.003, 0.0003], "dense.server_lr": [1.0]},
    {"dense.optimiser": [ADAM], "local.lr": [0.003], "dense.server_lr": [1.0], "local.lr_decay": [0.8]},
    {"dense.optimiser": [SGD], "local.lr": [0.03, 0.01], "dense.server_lr": [1.0]},
    {"dense.optimiser": [SGD], "local.lr": [0.03], "dense.server_lr": [0.5]},
]
SIGNS: dict[str, list[Any]] = {"dense.optimiser": [SGD], "local.lr": [0.03]}
QUANTISED: dict[str, list[Any]] = {"dense.broadcast": ["quantised"], "dense.broadcast_bits": [1, 2]}
LONG: dict[str, list[Any]] = {"rounds": [12], "local.epochs": [10]}
"""As many steps a round as in the quickstart, for a method whose steadiness depends on them."""
GRIDS: dict[str, list[dict[str, list[Any]]]] = {
    "drive": UNBIASED,  # and so eden, which at 1 bit is the same
    "qsgd": UNBIASED,
    "terngrad": UNBIASED,
    "signsgd": [
        {**SIGNS, "dense.server_lr": [0.001, 0.003, 0.0003]},
        {**SIGNS, "dense.server_lr": [0.001], "dense.server_decay": [0.8]},
        {**SIGNS, "dense.server_lr": [0.001], "signsgd.vote": [True]},
        {"dense.optimiser": [ADAM], "local.lr": [0.001], "dense.server_lr": [0.001, 0.0005]},
    ],
    "fedmask": [
        {**LONG, "local.lr": [0.1, 0.05, 0.03], "fedmask.clamp": [0.35]},
        {**LONG, "local.lr": [0.05, 0.02], "fedmask.clamp": [0.42]},
    ],
    "fedavg": [
        {"dense.optimiser": [ADAM], "local.lr": [0.001, 0.003], "dense.server_lr": [1.0]},
        {"dense.optimiser": [SGD], "local.lr": [0.03, 0.1], "dense.server_lr": [1.0]},
        {"local.lr": [0.003]},
        {"local.lr": [0.003], **QUANTISED},
    ],
    "fedmrn": [
        {"local.lr": [0.003], "fedmrn.noise": [0.03, 0.01, 0.1, 0.003]},
        {"local.lr": [0.01, 0.001], "fedmrn.noise": [0.03]},
        {"local.lr": [0.003], "fedmrn.noise": [0.03, 0.01], "fedmrn.signed": [True]},
        {"local.lr": [0.003], "fedmrn.noise": [0.03], **QUANTISED},
    ],
    "hidenseek": [
        {"local.lr": [0.5, 0.3, 0.8], "hidenseek.clamp": [0.1], "hidenseek.keep": [0.5]},
        {"local.lr": [0.5], "hidenseek.clamp": [0.1], "hidenseek.keep": [0.2, 0.8]},
        {"local.lr": [0.5], "hidenseek.clamp": [0.25, 0.03], "hidenseek.keep": [0.5]},
        {"model.init": ["half"], "local.lr": [0.2], "hidenseek.clamp": [0.35], "hidenseek.keep": [0.5]},
        {"local.epochs": [10], "local.lr": [0.1], "hidenseek.clamp": [0.1, 0.2]},
    ],
    "frl": [
        {"local.lr": [0.03, 0.01, 0.1], "frl.keep": [0.5]},
        {"local.lr": [0.03], "frl.keep": [0.3]},
    ],
}


def settings(grid: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of a grid."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def score(task: str, algorithm: str, chosen: dict[str, Any], rounds: int, epochs: int, seed: int) -> dict[str, Any]:
    """Run one setting and return what validation data say about it."""
    import fedpm

    overrides = [
        *COMMON,
        *TASKS[task][0],
        f"algorithm={algorithm}",
        f"rounds={rounds}",
        f"local.epochs={epochs}",
        f"seed={seed}",
    ]
    overrides += [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
    result = fedpm.run(fedpm.load_config(None, overrides))
    accuracy = [max(record["validation_accuracy"].values()) for record in result.rounds]
    return {
        "task": task, "algorithm": algorithm, "settings": chosen, "rounds": rounds, "epochs": epochs, "seed": seed,
        "validation_accuracy": sum(accuracy[-3:]) / len(accuracy[-3:]),
        "train_loss": result.rounds[-1]["train_loss"],
        "uplink_bpp": result.summary["uplink_bpp"], "downlink_bpp": result.summary["downlink_bpp"],
        "seconds": result.summary["seconds"],
    }  # fmt: skip


def table(results: list[dict[str, Any]]) -> str:
    """Return the settings of each algorithm, best first."""
    lines = [
        "| algorithm | settings | validation accuracy | training loss | bpp up | down |",
        "|---|---|---|---|---|---|",
    ]
    results = [row for row in results if row["train_loss"] is not None]
    for algorithm in GRIDS:
        rows = [row for row in results if row["algorithm"] == algorithm]
        for row in sorted(rows, key=lambda row: (-round(row["validation_accuracy"], 3), row["train_loss"])):
            chosen = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in row["settings"].items())
            lines.append(
                f"| {algorithm} | {chosen} | {row['validation_accuracy']:.3f} | {row['train_loss']:.3f} "
                f"| {row['uplink_bpp']:.2f} | {row['downlink_bpp']:.2f} |"
            )
    return "\n".join(lines)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run what is missing in two processes, and show the table."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--only", choices=GRIDS, action="append")
    parser.add_argument("--rounds", type=int, help="default: 6 of the digits, 25 of MNIST")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    results = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = [(row["algorithm"], row["settings"], row["seed"]) for row in results]
    wanted = [(a, s) for a in options.only or GRIDS for grid in GRIDS[a] for s in settings(grid)]
    rounds = options.rounds or TASKS[options.task][1]
    missing = [(a, s) for a, s in wanted if (a, s, options.seed) not in done]
    if missing and not options.table:
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool, options.out.open("a") as file:
            runs = [pool.submit(score, options.task, a, s, rounds, options.epochs, options.seed) for a, s in missing]
            for run in runs:
                results.append(run.result())
                print(json.dumps(results[-1]), file=file, flush=True)
    print(table(results))
