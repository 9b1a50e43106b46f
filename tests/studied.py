"""A study small enough for a test: two runs of two rounds on 120 digits."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

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
"model.name" = "conv4-slim"

[axes]
split = { "2" = { "data.split" = "classes", "data.classes_per_client" = 5 } }
algorithm = ["fedpm", "eden"]

[[published]]
quantity = "accuracy"
where = "Table 0"
rows = [["2", "fedpm", 0.75, 0.01], ["2", "eden", 0.5]]
"""


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the finished study, with one seed: the same for all processes of the suite."""
    from fedpm.study.definition import load  # here, because tests/conftest.py imports this file without torch
    from fedpm.study.runner import prepare, run_all

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "study"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            (folder / "small.toml").write_text(STUDY)
            study = load(str(folder / "small.toml"))
            prepare(folder / "out", study)
            assert run_all(study.runs(1, ["workers=1"]), folder / "out", processes=2) == {}
            (folder / "done").touch()
    return folder / "out"
