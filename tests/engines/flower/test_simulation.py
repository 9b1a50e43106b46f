"""``fedpm run --engine flower``: Flower's simulation, with Ray."""

import os
import signal
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from fedpm import config as configs
from fedpm.engines.inprocess import Sequential
from fedpm.experiment import api
from tests.command import FEDPM, fedpm, wait_until
from tests.engines.flower.conftest import records, sets, timeless
from tests.marked import listening, marked

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]


SLIM = "model.name=conv4-slim"


def words(settings: list[str], folder: Path) -> list[str]:
    """Return the words of a command that simulates."""
    return ["run", "--preset", "quickstart", *sets(*settings), "--engine", "flower", "--out", str(folder / "run")]


def test_the_simulation_ends_in_the_same_model(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))  # which what is started here will bear, and this process does not
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    out, chosen = tmp_path / "run", [*settings, "clients.total=4", "flower.quorum=1.0", SLIM, "rounds=2"]
    done = fedpm(*words([*chosen, "workers=2"], tmp_path))
    assert done.code == 0, done.stderr
    alone = api.run(configs.load("quickstart", [*chosen, "workers=1"]))
    assert (out / "model.fedpm").read_bytes() == alone.file.to_bytes()
    assert timeless(records(out)) == timeless(alone.rounds)
    assert "round 2/2  accuracy" in done.stdout
    assert not marked(tmp_path, patience=30), "no process outlives the run"
    assert not (tmp_path / "home").exists(), "nothing is written to the user's home"


SECURE = ["clients.total=3", "flower.quorum=1.0", "codec=secure-sum", SLIM]


@dataclass(frozen=True)
class Interrupted:
    """A run of secure sums that was told to end amid its work."""

    folder: Path
    addresses: set[IPv4Address | IPv6Address]
    processes: list[str]
    code: int
    errors: str


@pytest.fixture(scope="module")
def interrupted(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted")
    chosen = [*settings, *SECURE, "rounds=1000", "workers=1"]  # one actor for all: each imports torch
    with subprocess.Popen(
        [FEDPM, *words(chosen, folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK": str(folder), "HOME": str(folder / "home")},
    ) as process:
        wait_until((folder / "run/checkpoint/state.safetensors").exists, process, seconds=300)
        addresses, processes = listening(folder), list(marked(folder).values())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    return Interrupted(folder, addresses, processes, process.returncode, errors)


def test_the_simulation_keeps_to_this_machine_and_ends_cleanly_when_told_to(interrupted: Interrupted) -> None:
    assert interrupted.addresses, "Ray's processes talk to each other"
    assert not [str(address) for address in interrupted.addresses if not address.is_loopback]
    assert not [line for line in interrupted.processes if "dashboard.py" in line or "monitor.py" in line]
    assert interrupted.code == 130
    lines = interrupted.errors.splitlines()
    assert [line for line in lines if not line.endswith("clients are connected; waiting for more")] == [
        "fedpm: interrupted; nothing that was saved is lost, continue with: fedpm run --resume "
        f"{interrupted.folder / 'run'}"
    ], "a slow start of Ray may be told too, and nothing else"
    assert not marked(interrupted.folder, patience=30), "no process outlives the run"


def test_secure_sums_give_the_same_model_on_ray(settings: list[str], interrupted: Interrupted) -> None:
    folder = interrupted.folder / "run"
    rounds = len(records(folder))
    ended = api.resume(folder, rounds=rounds, start=lambda experiment: Sequential(experiment.clients))
    alone = api.run(configs.load("quickstart", [*settings, *SECURE, "workers=1", f"rounds={rounds}"]))
    assert ended.file.to_bytes() == alone.file.to_bytes()
    assert timeless(records(folder)) == timeless(alone.rounds)
