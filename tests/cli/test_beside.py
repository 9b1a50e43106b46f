"""Losses and metrics of the user's own, in a module that lies in the current folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Command, cli

__all__ = ["cli"]

FUNCTIONS = """import torch


def focal(output, target):
    return torch.nn.functional.cross_entropy(output, target)


def share(output, target):
    return (output.argmax(1) == target).float().mean()
"""
SMALL = ["rounds=1", "local.epochs=1", "model.name=conv4-slim", "data.train_examples=100", "clients.total=2"]
NAMED = ["task.loss=functions_of_mine:focal", "task.metrics=functions_of_mine:share"]
OWN = [word for setting in (*SMALL, *NAMED) for word in ("--set", setting)]


def forget(folder: Path) -> None:
    """Let Python find modules in a folder no more."""
    sys.modules.pop("functions_of_mine", None)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(folder))]


@pytest.fixture
def beside(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run commands in a folder that has the module, as the installed program does: without that folder on the path."""
    (tmp_path / "functions_of_mine.py").write_text(FUNCTIONS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget(tmp_path)
    yield cli
    forget(tmp_path)


def test_functions_in_the_current_folder_are_found(beside: Command, tmp_path: Path) -> None:
    for words in (
        ["run", *OWN, "--workers", "1", "--out", "run"],
        ["run", "--resume", "run", "--set", "rounds=2"],
        ["model", "eval", "run"],
    ):
        done = beside(*words)
        assert done.code == 0, done.stderr
        assert "share 0." in done.stdout
        forget(tmp_path)


def test_a_model_file_alone_does_not_say_what_is_run(beside: Command, tmp_path: Path) -> None:
    assert beside("run", *OWN, "--workers", "1", "--out", "run").code == 0
    forget(tmp_path)
    (tmp_path / "run" / "model.fedpm").rename(tmp_path / "sent.fedpm")
    (tmp_path / "functions_of_mine.py").write_text("raise SystemExit('this was run')")
    done = beside("model", "eval", "sent.fedpm")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("accuracy 0.")
    assert done.stderr == (
        "fedpm: warning: sent.fedpm was trained with functions_of_mine:focal, a function of somebody's own, which a "
        "model file does not bring along: it is scored by cross-entropy and accuracy\n"
    )


def test_the_current_folder_hides_nothing_of_runs_that_name_no_functions(beside: Command, tmp_path: Path) -> None:
    small = [word for setting in SMALL for word in ("--set", setting)]
    assert beside("run", *small, "--workers", "1", "--out", "run").code == 0
    assert str(tmp_path) not in sys.path


@pytest.mark.slow
def test_processes_find_functions_in_the_current_folder(beside: Command, tmp_path: Path) -> None:
    done = beside("run", *OWN, "--workers", "2", "--out", "run")
    assert done.code == 0, done.stderr
    forget(tmp_path)
    (tmp_path / "own.toml").write_text('title = "own"\n[axes]\nrounds = [1]\n')
    done = beside("study", "run", "own.toml", *OWN[2:], "--seeds", "1", "--processes", "1", "--out", "studied")
    assert done.code == 0, done.stderr
