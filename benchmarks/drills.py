"""Disasters for short runs: each has to end in the very model of a run that nothing happened to.

python -m benchmarks drills                             # all of them: some minutes
python -m benchmarks drills --only kills --seed 1       # kills alone, at other moments

A fault at every operation on files; power cuts after every round, on a disk of their own where this machine lets us
mount one; a flipped bit of checkpoint or log; ``fedpm run`` killed at random moments. Whatever is left is taken up
again as a user would. Damage may also be refused, with a reason. docs/drills.md lists what is tried elsewhere.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.drills import (
    can_mount,
    faulty,
    power_cuts,
    short_config,
    stop_after_a_round,
    survive_cut,
    survive_damage,
    survive_fault,
)
from tests.small import small_net

import fedpm
from benchmarks.startup import COMMAND
from fedpm.data.datasets import digits

ROUNDS = 5
"""After each of which there is a power cut."""
SETTINGS = ("data.name=digits", "model.name=conv4-slim", "rounds=3", "local.epochs=1", "workers=1")
"""Of the run that is killed."""


@dataclass(frozen=True)
class Drill:
    """What happened, how often, and how many runs survived it."""

    what: str
    times: int
    survived: int


def faults(folder: Path) -> Drill:
    """Let every operation on files of a run fail, one in each of so many runs."""
    data = digits()
    with faulty() as counted:
        whole = fedpm.run(short_config(), net=small_net(), data=data, out=folder / "whole").file.to_bytes()
    trials = {f"fault {n}": partial(survive_fault, n, folder / str(n), data) for n in range(counted.count)}
    return Drill("a fault at each operation on files", len(trials), survivors(trials, whole))


def cuts(folder: Path) -> Drill:
    """Cut the power after every round."""
    what, data = f"a power cut after each of {ROUNDS} rounds", digits()
    if not can_mount():
        return Drill(f"{what}: not here, it needs root and mkfs.ext4", 0, 0)
    try:
        images = power_cuts(folder, data, ROUNDS)
    except subprocess.CalledProcessError as error:
        return Drill(f"{what}: not here, {error.cmd[0]} failed", 0, 0)
    whole = fedpm.run(short_config(ROUNDS), net=small_net(), data=data).file.to_bytes()
    trials = {f"cut {done}": partial(survive_cut, image, done, data) for done, image in enumerate(images, 1)}
    return Drill(what, len(trials), survivors(trials, whole))


def damage(folder: Path, count: int, seed: int) -> Drill:
    """Flip a bit of the checkpoint or the log of a run that was broken off."""
    data, rng = digits(), random.Random(seed)
    whole = fedpm.run(short_config(), net=small_net(), data=data).file.to_bytes()
    begun = stop_after_a_round(folder / "begun", data)
    trials = {f"damage {n}": partial(survive_damage, begun, folder / str(n), data, rng) for n in range(count)}
    refused = 0

    def counted(trial: Callable[[], bytes | None]) -> bytes:
        nonlocal refused
        model = trial()
        refused += model is None
        return whole if model is None else model

    right = survivors({name: partial(counted, trial) for name, trial in trials.items()}, whole)
    return Drill(f"a flipped bit of checkpoint or log, of which {refused} were refused", count, right)


def kills(folder: Path, count: int, seed: int) -> Drill:
    """Kill the program at random moments between the first file that it writes and its end."""
    undisturbed = begin(folder / "whole")
    started = time.monotonic()
    if undisturbed.wait():
        raise SystemExit(f"fedpm run ended with exit code {undisturbed.returncode} though nothing happened to it")
    rng, duration = random.Random(seed), time.monotonic() - started
    trials = {f"kill {n}": partial(survive_kill, folder / str(n), rng, duration) for n in range(count)}
    return Drill("SIGKILL of fedpm run at a random moment", count, survivors(trials, model(folder / "whole")))


def survivors(trials: Mapping[str, Callable[[], bytes | None]], whole: bytes) -> int:
    """Return how many trials end in the right model, and say of each other one what came of it."""
    right = 0
    for name, trial in trials.items():
        try:
            result = "another model, or a round lost" if trial() != whole else ""
        except Exception as error:  # whatever it is, the other trials go on
            result = f"{type(error).__name__}: {error}"
        right += not result
        if result:
            print(f"{name}: {result}", flush=True)
    return right


def survive_kill(out: Path, rng: random.Random, duration: float) -> bytes:
    """Kill a run at some moment, take up what is left, and return the model."""
    for attempt in range(100):  # of which one is in time: moments are drawn anew, down to none at all
        where = out / str(attempt)
        process = begin(where)
        try:
            code = process.wait(rng.uniform(0, duration))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return take_up(where)
        if code:
            raise subprocess.CalledProcessError(code, "fedpm run")
    raise TimeoutError(f"100 runs ended before they were killed, in less than {duration:.1f} s")


def begin(out: Path) -> subprocess.Popen[bytes]:
    """Start a run, and return once it has begun its folder: before that there is nothing to lose."""
    process = subprocess.Popen([*COMMAND, *arguments_of(out)], stdout=subprocess.DEVNULL)
    while not out.exists() and process.poll() is None:
        time.sleep(0.005)
    return process


def take_up(out: Path) -> bytes:
    """Continue a run, or begin it where there is nothing to continue, and return the model."""
    begun = (out / "config.toml").is_file()
    arguments = ["run", "--resume", str(out)] if begun else arguments_of(out)
    subprocess.run([*COMMAND, *arguments], check=True, stdout=subprocess.DEVNULL)
    return model(out)


def arguments_of(out: Path) -> list[str]:
    """Return the command of the run that is killed."""
    return ["run", "--out", str(out), *(word for pair in SETTINGS for word in ("--set", pair))]


def model(out: Path) -> bytes:
    """Return the model file of a finished run."""
    return (out / "model.fedpm").read_bytes()


def report(drills: list[Drill]) -> None:
    """Print the table, and end with exit code 1 if a run did not survive."""
    table = Table("what", "how often", "survived")
    for drill in drills:
        table.add_row(drill.what, str(drill.times), str(drill.survived))
    Console().print(table)
    if any(drill.survived < drill.times for drill in drills):
        sys.exit(1)


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run the drills, each in a folder of its own."""
    drills: dict[str, Callable[[Path], Drill]] = {"faults": faults, "cuts": cuts}
    parser.add_argument("--only", choices=[*drills, "damage", "kills"], action="append")
    parser.add_argument("--flips", type=int, default=200, help="how many bits are flipped, one in each of so many runs")
    parser.add_argument("--kills", type=int, default=20, help="how often fedpm run is killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    drills["damage"] = partial(damage, count=options.flips, seed=options.seed)
    drills["kills"] = partial(kills, count=options.kills, seed=options.seed)
    done = []
    for name in options.only or drills:
        with tempfile.TemporaryDirectory() as scratch:
            done.append(drills[name](Path(scratch)))
    report(done)
