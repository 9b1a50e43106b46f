"""``fedpm run --engine flower``: Flower's simulation, with Ray."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from examples.fleet import FEDPM

from fedpm import config as configs
from fedpm.experiment import api
from tests.command import wait_until
from tests.engines.flower.conftest import records, sets, timeless
from tests.marked import listening, marked

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]


SLIM = "model.name=conv4-slim"


def start(settings: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a simulation in a process that bears a folder's mark, as its children will."""
    command = [FEDPM, "run", "--preset", "quickstart", *sets(*settings), "--engine", "flower"]
    return subprocess.Popen(
        [*command, "--out", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK": str(folder), "HOME": str(folder / "home")},
    )


def test_the_simulation_ends_in_the_same_model(settings: list[str], tmp_path: Path) -> None:
    out, chosen = tmp_path / "run", [*settings, "clients.total=4", "flower.quorum=1.0", SLIM]
    with start(chosen, tmp_path) as process:
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    alone = api.run(configs.load("quickstart", [*chosen, "workers=1"]))
    assert (out / "model.fedpm").read_bytes() == alone.file.to_bytes()
    assert timeless(records(out)) == timeless(alone.rounds)
    assert "round 3/3  accuracy" in said
    assert not marked(tmp_path, patience=30), "no process outlives the run"
    assert not (tmp_path / "home").exists(), "nothing is written to the user's home"


def test_the_simulation_keeps_to_this_machine_and_ends_cleanly_when_told_to(
    settings: list[str], tmp_path: Path
) -> None:
    with start([*settings, "rounds=1000", SLIM], tmp_path) as process:
        wait_until((tmp_path / "run/checkpoint/state.safetensors").exists, process)
        addresses = listening(tmp_path)
        assert addresses, "Ray's processes talk to each other"
        assert not [str(address) for address in addresses if not address.is_loopback]
        assert not [line for line in marked(tmp_path).values() if "dashboard.py" in line or "monitor.py" in line]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    waits = [line for line in errors.splitlines() if line.endswith("clients are connected; waiting for more")]
    assert [line for line in errors.splitlines() if line not in waits] == [
        f"fedpm: interrupted; nothing that was saved is lost, continue with: fedpm run --resume {tmp_path / 'run'}"
    ], "a slow start of Ray may be told too, and nothing else"
    assert not marked(tmp_path, patience=30), "no process outlives the run"


def test_secure_sums_give_the_same_model_on_ray(settings: list[str], tmp_path: Path) -> None:
    chosen = [*settings, "rounds=1", "clients.total=3", "flower.quorum=1.0", SLIM]
    with start([*chosen, "codec=secure-sum"], tmp_path) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    alone = api.run(configs.load("quickstart", [*chosen, "workers=1", "codec=secure-sum"]))
    assert (tmp_path / "run/model.fedpm").read_bytes() == alone.file.to_bytes()
    assert timeless(records(tmp_path / "run")) == timeless(alone.rounds)
