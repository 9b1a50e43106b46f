"""What an installation without extras can do, and what it says of what it cannot."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.command import fedpm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = [
    "matplotlib",
    "PIL",
    "flwr",
    "ray",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "tensorboard",
    "dp_accounting",
    "numba",
]
"""Modules of the extras, which a run must not import."""
RUN = ["rounds=1", "local.epochs=1", "clients.total=2", "model.name=conv4-slim", "data.train_examples=60"]


def needed(requirements: list[str]) -> set[str]:
    """Return the packages that requirements bring, and those that these bring in turn, as installed here."""
    installed = {_name(found.name): found.requires or [] for found in distributions()}
    names: set[str] = set()
    queue = [Requirement(text) for text in requirements]
    while queue:
        one = queue.pop()
        if (one.marker is None or one.marker.evaluate({"extra": ""})) and _name(one.name) not in names:
            names.add(_name(one.name))
            queue += [Requirement(text) for text in installed.get(_name(one.name), [])]
    return names


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def test_an_installation_without_extras_is_light() -> None:
    brought = needed(PROJECT["dependencies"])
    assert {"torch", "numpy", "constriction", "typer"} <= brought
    assert not brought & {"matplotlib", "pillow", "fonttools", "flwr", "ray", "onnx", "tensorboard", "pytest", "mypy"}


def test_upper_bounds_that_only_flower_needs_are_in_its_extra() -> None:
    bounded = {Requirement(text).name for text in PROJECT["dependencies"] if "<" in text}
    assert not bounded & {"typer", "rich", "click"}
    extra = {Requirement(text).name for text in PROJECT["optional-dependencies"]["flower"] if "<" in text}
    assert extra == {"typer", "rich", "click"}


@pytest.mark.slow
def test_a_run_needs_no_extra(tmp_path: Path) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({HEAVY})); from fedpm.cli import main; main()"
    words = [word for setting in RUN for word in ("--set", setting)]
    command = [sys.executable, "-c", code, "run", *words, "--workers", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.fedpm").is_file()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["report", "nowhere"], "a report"),
        (["data", "show", "digits", "--out", "new.png"], "a picture"),
        (["privacy", "curve"], "the picture of a curve"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    arguments: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    done = fedpm(*arguments, cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    clone = "pip install -c constraints.txt -e '.[report]'"
    assert done.stderr == f"fedpm: {what} needs matplotlib: pip install 'fedpm[report]', in a clone {clone}\n"


def test_running_installs_no_developer_tools() -> None:
    make = subprocess.run(["make", "-n", "-B", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".[report]" in make
    assert "dev" not in make
    make = subprocess.run(["make", "-n", "-B", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert make.index(".[dev]") < make.index("pytest")
