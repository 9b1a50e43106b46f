"""A study small enough for a test: two runs of two rounds on 120 digits."""

import subprocess
import sys
from pathlib import Path

import pytest

STUDY = """
title = "A small study"
about = "For tests."
paper = "Table 0"
goal = 0.1
base = "quickstart"

[settings]
rounds = 2
"local.epochs" = 1
"data.train_examples" = 120
"data.test_examples" = 60
"clients.total" = 2

[axes]
split = { "2" = { "data.split" = "classes", "data.classes_per_client" = 5 } }
algorithm = ["fedpm", "eden"]

[[published]]
quantity = "accuracy"
where = "Table 0"
rows = [["2", "fedpm", 0.75, 0.01], ["2", "eden", 0.5]]
"""


def fedpm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("fedpm"))
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="package")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the finished study, with one seed."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(STUDY)
    done = fedpm("study", "run", str(folder / "small.toml"), "--seeds", "1", "--out", str(folder / "out"))
    assert done.returncode == 0, done.stderr
    assert "run 2 of 2" in done.stdout
    return folder / "out"
