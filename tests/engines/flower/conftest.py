"""One experiment, small enough to be trained again and again, and one fleet for all tests that need processes."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from examples.fleet import FEDPM, Fleet

from fedpm.data.datasets import digits


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """3 rounds, 4 clients, the digits as a folder of arrays, which loads faster."""
    folder, data = tmp_path_factory.mktemp("data"), digits()
    arrays = {"train_x": data.train.x, "train_y": data.train.y, "test_x": data.test.x, "test_y": data.test.y}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[:240])
    return [
        "rounds=3", "clients.total=4", "local.epochs=1", "data.name=folder", f'data.path="{folder}"',
        "flower.quorum=1.0", "flower.deadline=300.0",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def inprocess(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Path:
    """The run folder of the embedded engine."""
    folder = tmp_path_factory.mktemp("inprocess") / "run"
    command = [FEDPM, "run", "--preset", "quickstart", *sets(*settings), "--workers", "1", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def lines(folder: Path) -> list[str]:
    """Return the rounds of a run without their times."""
    return [line.split('"seconds"')[0] for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """SuperLink, gate and two nodes; in the end they are killed, and nothing may outlive them."""
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder) as running:
        yield running
        for name in list(running.processes):
            running.processes[name].kill()
            running.processes.pop(name).wait()
    assert not processes(str(folder), patience=60)


def processes(mark: str, patience: float = 0.0) -> list[str]:
    """Return the processes, but zombies, whose environment speaks of a folder, once they had time to end."""
    end = time.monotonic() + patience
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)
