"""``fedpm run --engine flower``: Flower's simulation, with Ray."""

import os
import subprocess
from pathlib import Path

import pytest
from examples.fleet import FEDPM

from fedpm import config as configs
from fedpm.experiment import api
from tests.engines.flower.conftest import records, sets, timeless
from tests.marked import marked

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]


def test_the_simulation_ends_in_the_same_model(settings: list[str], tmp_path: Path) -> None:
    out, chosen = tmp_path / "run", [*settings, "clients.total=4", "flower.quorum=1.0"]
    command = [FEDPM, "run", "--preset", "quickstart", *sets(*chosen), "--engine", "flower", "--out", str(out)]
    environment = {**os.environ, "MARK": str(tmp_path), "HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    alone = api.run(configs.load("quickstart", [*chosen, "workers=1"]))
    assert (out / "model.fedpm").read_bytes() == alone.file.to_bytes()
    assert timeless(records(out)) == timeless(alone.rounds)
    assert "round 3/3  accuracy" in done.stdout
    assert not marked(tmp_path, patience=30), "no process outlives the run"
    assert not (tmp_path / "home").exists(), "nothing is written to the user's home"
