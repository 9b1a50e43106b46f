"""How long a user waits before anything happens.

Torch's import is most of it, and no more in our hands than the machine is: so each case is also given over the seconds
of ``python -c 'import torch'``, which take turns with it.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import Row, timed

COMMAND = [sys.executable, "-c", "from fedpm.cli import main; main()"]
FIRST_STEP = """
import os, sys
from fedpm.cli import main

command = sys.modules["fedpm.cli.run"]
watched = command._watched  # called when all is imported, and nothing else is done

def to_first_step(*arguments):
    from fedpm.training.optimiser import Optimiser
    Optimiser.step = lambda self: os._exit(0)  # the last thing in a step
    watched(*arguments)

command._watched = to_first_step
main()
sys.exit("there was no step")
"""
"""``fedpm``, ended by its first training step."""
REPEATS = 5


def run() -> list[Row]:
    """Measure the help page, and ``fedpm run`` up to the end of its first training step."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1000))

        def first_step(*options: str) -> Callable[[], None]:
            step = [sys.executable, "-c", FIRST_STEP, "run", *options, "--out"]
            return lambda: _wait([*step, str(Path(folder) / str(next(numbers)))])

        seconds = timed(
            {
                "python -c 'import torch'": lambda: _wait([sys.executable, "-c", "import torch"]),
                "fedpm --help": lambda: _wait([*COMMAND, "--help"]),
                "fedpm run, to the first step": first_step(),
                "fedpm run --workers 1, to the first step": first_step("--workers", "1"),
            },
            REPEATS,
        )
    torch = seconds["python -c 'import torch'"]
    return [{"case": case, "seconds": taken, "over torch's": taken / torch} for case, taken in seconds.items()]


def _wait(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
