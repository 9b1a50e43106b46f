"""Run every algorithm with its tuned rates and compare them; run from the repository's root.

python -m benchmarks.compare --out runs/compare --seeds 3 --set rounds=8 --set local.epochs=3
python -m benchmarks.compare --out runs/mnist --preset mnist-conv4 --set data.train_examples=5000 --set rounds=20

Each run has a folder below --out; finished ones are kept and interrupted ones continued.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

NAMES = ("fedpm", "fedmask", "fedavg", "signsgd", "terngrad", "qsgd", "drive", "eden")


def train(folder: Path, preset: str, overrides: list[str]) -> None:
    """Make one run, or what is left of it."""
    import fedpm

    if (folder / "summary.json").exists():
        return
    if (folder / "config.toml").exists():
        fedpm.resume(folder)
    else:
        fedpm.run(fedpm.load_config(preset, overrides), out=folder)


def figures(folder: Path, goal: float) -> dict[str, Any]:
    """Return what a run came to; ``to_goal`` are the bytes both ways until the goal was first reached."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    spent, to_goal = 0, None
    for record in records:
        spent += record["uplink_bytes"] + record["downlink_bytes"]
        if record["accuracy"] >= goal:
            to_goal = spent
            break
    paper = [r.get("uplink_paper_bpp", r.get("uplink_frequency_entropy_bpp")) for r in records]
    return {**summary, "to_goal": to_goal, "paper": mean(paper)}


def row(name: str, runs: list[dict[str, Any]]) -> str:
    """Return an algorithm's line of the table: means over the seeds."""
    accuracy = [run["accuracy"] for run in runs]
    spread = f" ± {stdev(accuracy):.3f}" if len(runs) > 1 else ""
    reached = [run["to_goal"] for run in runs if run["to_goal"] is not None]
    goal = f"{mean(reached) / 1e6:.1f} MB" if len(reached) == len(runs) else f"not reached ({len(reached)}/{len(runs)})"
    cells = [
        name,
        f"{mean(accuracy):.3f}{spread}",
        *(f"{mean(run[key] for run in runs):.3f}" for key in ("uplink_bpp", "paper", "downlink_bpp")),
        goal,
        f"{mean(run['model_bytes'] for run in runs) / 1e3:.0f} kB",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what is missing in two processes, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--goal", type=float, default=0.9, help="test accuracy to reach")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names, seeds = options.only or NAMES, range(options.seeds)
    folders = {(name, seed): options.out / f"{name}-{seed}" for seed in seeds for name in names}
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        started = []
        for (name, seed), folder in folders.items():
            chosen = [*options.overrides, f"algorithm={name}", f"seed={seed}", "workers=1"]
            started.append(pool.submit(train, folder, options.preset, chosen))
        for run in started:
            run.result()
    print(f"| algorithm | test accuracy | bpp up | paper's accounting | bpp down | to {options.goal} | model |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        print(row(name, [figures(folders[name, seed], options.goal) for seed in seeds]))


if __name__ == "__main__":
    main()
