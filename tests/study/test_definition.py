"""Studies as files: axes, scales, faults."""

import re
from pathlib import Path

import pytest

from fedpm.errors import ConfigError
from fedpm.study import definition
from fedpm.study.definition import load, studies

TINY = """
title = "Tiny"
base = "quickstart"
goal = 0.5
settings = { rounds = 2, "local.epochs" = 1 }

[axes]
algorithm = ["fedpm", "eden"]
rho = { "1" = { "clients.rho" = 1.0 }, "0.4" = { "clients.rho" = 0.4, "clients.total" = 5 } }

[scale.small]
seeds = 2
settings = { rounds = 1 }

[scale.paper]
axes = { algorithm = ["fedpm"] }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


def test_axes_are_combined_and_seeds_come_last(tiny: str) -> None:
    study = load(tiny)
    runs = study.runs(study.seeds)
    assert [run.name for run in runs[:4]] == ["fedpm_1_seed0", "fedpm_0.4_seed0", "eden_1_seed0", "eden_0.4_seed0"]
    assert [run.seed for run in runs] == [0, 0, 0, 0, 1, 1, 1, 1]
    last = runs[-1].config
    assert (last.algorithm, last.clients.total, last.clients.rho, last.seed) == ("eden", 5, 0.4, 1)
    assert (last.rounds, last.local.epochs) == (1, 1)


def test_a_scale_changes_settings_and_axes(tiny: str) -> None:
    paper = load(tiny, "paper")
    assert [run.name for run in paper.runs(1)] == ["fedpm_1_seed0", "fedpm_0.4_seed0"]
    assert paper.runs(1)[0].config.rounds == 2


def test_a_written_study_reads_back(tiny: str, tmp_path: Path) -> None:
    study = load(tiny, "small", ["data.train_examples=200"])
    (tmp_path / "study.toml").write_text(study.to_toml())
    again = definition.read(tmp_path)
    assert again.to_toml() == study.to_toml()
    assert [run.config for run in again.runs(2)] == [run.config for run in study.runs(2)]
    assert again.runs(1)[0].config.data.train_examples == 200
    assert again.differs == "Changed on the command line: data.train_examples=200."


def test_the_study_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text()
    (tmp_path / "prior.toml").write_text(re.search(r"```toml\n(.*?)```", page, re.S)[1])  # type: ignore[index]
    assert len(load(str(tmp_path / "prior.toml")).runs(3)) == 3 * 3 * 2


def test_a_base_file_lies_beside_its_study(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("rounds = 7")
    (tmp_path / "own.toml").write_text('title = "Own"\nbase = "base.toml"')
    assert load(str(tmp_path / "own.toml")).runs(1)[0].config.rounds == 7


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ('title = "x"\nnonsense = 1', [], r"nonsense: there is no such key; there are: title, .*scale$"),
        ('title = "x"\n[axis]\nrounds = [1]', [], r"axis: there is no such key; did you mean axes\?"),
        ('title = "x"\n[scale.small]\nseed = 1', [], r"scale.small.seed: there is no such key; did you mean seeds\?"),
        ('title = "x"\naxes = { algorithm = "fedpm" }', [], "axes.algorithm should be a list"),
        ('title = "x"\naxes = { algorithm = ["fedpm", "x"], codec = ["y"] }', [], "algorithm = 'x'"),
        ('title = "x"\naxes = { a = { "1." = { rounds = 1 }, "1. " = { rounds = 2 } } }', [], "both called 1._seed0"),
        ('title = "x"\naxes = { algorithm = ["fedpm"] }', ["algorithm=eden"], "the study itself varies algorithm"),
        ('title = "x"', ["seed=3"], "the study itself varies seed"),
        ("title = ", [], "not a TOML file"),
    ],
)
def test_faults_are_told_before_anything_runs(text: str, overrides: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(str(tmp_path / "bad.toml"), None, overrides).runs(1)


def test_unknown_names_and_scales_are_told(tiny: str) -> None:
    with pytest.raises(ConfigError, match=r"no such study; there are: .*iid-digits"):
        load("nonsense")
    with pytest.raises(ConfigError, match="has no such scale; it has: small, paper"):
        load(tiny, "huge")


@pytest.mark.parametrize("name", studies())
def test_every_study_is_valid_at_every_scale(name: str) -> None:
    file = studies()[name]
    for scale in file.scale:
        study = load(name, scale)
        assert study.runs(study.seeds)
        for table in study.published:
            for row in table.rows:
                for label, points in zip(row, study.axes.values(), strict=False):
                    assert label in points, f"{name}: the paper's figures name {label}"
                assert len(row) - len(study.axes) in (1, 2), f"{name}: {row}"
