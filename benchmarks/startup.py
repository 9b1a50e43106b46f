"""How long a user waits before anything happens."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.timing import Row

COMMAND = [sys.executable, "-c", "from fedpm.cli import main; main()"]
SHORT = ("rounds=1", "clients.total=1", "local.epochs=1", "data.train_examples=40", "data.test_examples=10")


def run() -> list[Row]:
    """Measure the help page, and a run without its only round."""
    with tempfile.TemporaryDirectory() as folder:
        waits = [_run(Path(folder) / str(attempt)) for attempt in range(3)]
    helps = [_clock(["--help"]) for _ in range(3)]
    return [
        {"case": "fedpm --help", "seconds": median(helps)},
        {"case": "fedpm run, all but the round", "seconds": median(waits)},
    ]


def _run(out: Path) -> float:
    arguments = ["run", "--workers", "1", "--out", str(out)]
    for setting in SHORT:
        arguments += ["--set", setting]
    seconds = _clock(arguments)
    record = json.loads((out / "rounds.jsonl").read_text())
    return seconds - float(record["seconds"])


def _clock(arguments: list[str]) -> float:
    started = perf_counter()
    subprocess.run([*COMMAND, *arguments], check=True, capture_output=True)
    return perf_counter() - started
