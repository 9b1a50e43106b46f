"""Short runs of a study, whose processes make one run after another, beside a program for each of them."""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.timing import Row, timed

FEDPM = [sys.executable, "-m", "fedpm"]
SETTINGS = {"rounds": 1, "local.epochs": 1, "model.name": "conv4-slim", "workers": 1}
PROCESSES = 2


def run(runs: int = 12, repeats: int = 3) -> list[Row]:
    """Measure so many runs of a second or so, two at a time, by the clock."""
    names = iter(range(runs * repeats * 10))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        study = out / "short.toml"
        settings = "".join(f'"{key}" = {value!r}\n' for key, value in SETTINGS.items())
        study.write_text(f'title = "Short runs"\nbase = "quickstart"\n[settings]\n{settings}')

        def by_study() -> None:
            _fedpm("study", "run", study, "--seeds", runs, "--processes", PROCESSES, "--out", out / str(next(names)))

        def by_programs() -> None:
            options = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
            seeds = [["--set", f"seed={seed}", "--out", out / str(next(names))] for seed in range(runs)]
            with ThreadPoolExecutor(PROCESSES) as programs:  # a list, for what fails to be heard
                list(programs.map(lambda seed: _fedpm("run", *options, *seed), seeds))

        seconds = timed({"by the processes of a study": by_study, "by a program each": by_programs}, repeats)
    study_seconds = seconds["by the processes of a study"]
    return [
        {"case": f"{runs} runs, {name}", "seconds": taken, "this / study": taken / study_seconds}
        for name, taken in seconds.items()
    ]


def _fedpm(*arguments: object) -> None:
    subprocess.run([*FEDPM, *map(str, arguments)], check=True, capture_output=True)
