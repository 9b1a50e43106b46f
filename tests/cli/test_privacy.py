"""``fedpm privacy``, and private runs from the command line."""

import csv
import json
from pathlib import Path

import pytest

from tests.command import fedpm

PRIVATE = ["--set", "privacy.unit=example", "--set", "privacy.epsilon=8"]


@pytest.mark.slow
def test_a_curve_is_written_once(tmp_path: Path) -> None:
    arguments = ("privacy", "curve", "--epsilon", "1,9", "--repetitions", "3", "--out", "curve")
    done = fedpm(*arguments, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert {path.name for path in (tmp_path / "curve").iterdir()} == {"curve.csv", "curve.png", "curve.svg"}
    rows = list(csv.DictReader((tmp_path / "curve" / "curve.csv").open()))
    assert [float(row["epsilon"]) for row in rows] == [1.0, 9.0]
    assert float(rows[1]["epsilon_paper"]) == pytest.approx(8.955, abs=1e-3)
    again = fedpm(*arguments, cwd=tmp_path)
    assert again.code == 1
    assert "holds a curve already" in again.stderr


@pytest.mark.slow
def test_an_account_before_any_training(tmp_path: Path) -> None:
    done = fedpm("privacy", "account", *PRIVATE, "--set", "rounds=4", "--out", "account.json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "noise multiplier" in done.stdout
    found = json.loads((tmp_path / "account.json").read_text())
    assert found["rounds it can take part in"] == 4
    assert 7.9 < found["after"]["4"] <= 8


@pytest.mark.slow
def test_a_private_run_shows_epsilon(tmp_path: Path) -> None:
    small = ["rounds=1", "local.epochs=1", "data.train_examples=100", "clients.total=2", "workers=1"]
    small.append("model.name=conv4-slim")
    settings = [part for setting in small for part in ("--set", setting)]
    done = fedpm("run", *settings, *PRIVATE, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "bpp  ε 8.00" in done.stdout
    assert "of 8 spent at δ 1e-05; neighbours: one example of one client is added or removed" in done.stdout
    seen = fedpm("model", "inspect", "run/model.fedpm", cwd=tmp_path)
    assert "adjacency one example of one client is added or removed" in seen.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["privacy", "curve", "--epsilon", "one"], 2, "should be numbers with commas"),
        (["privacy", "curve", "--c", "0.7"], 2, "c = 0.7 should be between 0 and 0.5"),
        (["privacy", "account"], 2, "promises nothing"),
        (["privacy", "account", "--preset", "quickstart", "--config", "x"], 2, "give only one"),
        (["run", "--set", "privacy.epsilon=8"], 2, "protects nobody"),
        (["run", "--preset", "cifar10-resnet18", *PRIVATE, "--set", "codec=nonsense"], 2, "codec = 'nonsense'"),
    ],
)
def test_wrong_use_is_one_clear_sentence(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = fedpm(*arguments, cwd=tmp_path)
    assert done.code == code
    assert words in done.stderr
    assert not list(tmp_path.iterdir())
