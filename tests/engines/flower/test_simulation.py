"""``fedpm run --engine flower``: Flower's simulation, with Ray."""

import os
import subprocess
from pathlib import Path

import pytest
from examples.fleet import FEDPM

from tests.engines.flower.conftest import lines, processes, sets

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]


def test_the_simulation_ends_in_the_same_model(inprocess: Path, settings: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [FEDPM, "run", "--preset", "quickstart", *sets(*settings), "--engine", "flower", "--out", str(out)]
    environment = {**os.environ, "MARK": str(tmp_path), "HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert (out / "model.fedpm").read_bytes() == (inprocess / "model.fedpm").read_bytes()
    assert lines(out) == lines(inprocess)
    assert "round 3/3  accuracy" in done.stdout
    assert not processes(f"MARK={tmp_path}", patience=30), "no process outlives the run"
    assert not (tmp_path / "home").exists(), "nothing is written to the user's home"
