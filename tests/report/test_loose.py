"""Runs that belong to no study: which of them are pooled as seeds, and the shortest of all."""

import csv
import shutil
from pathlib import Path

import pytest

import fedpm
from fedpm.data.datasets import Dataset
from fedpm.errors import ArtifactError
from fedpm.report.page import write
from fedpm.report.tables import tables
from fedpm.study.results import called, collect
from tests.report.light import svg_alone
from tests.small import small_config, small_net


@pytest.fixture(scope="module")
def short(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loose") / "short"
    fedpm.run(small_config(rounds=1), net=small_net(), data=data, out=out)
    return out


def changed(run: Path, out: Path, *changes: tuple[str, str]) -> Path:
    """Copy a run folder, with other settings written down."""
    shutil.copytree(run, out)
    text = (out / "config.toml").read_text()
    for before, after in changes:
        assert text.count(f"{before}\n") == 1, before
        text = text.replace(f"{before}\n", f"{after}\n")
    (out / "config.toml").write_text(text)
    return out


def pooled(folders: list[Path]) -> list[list[str]]:
    """Return the names of the runs of each group."""
    (found,) = collect(folders)
    return [[run.folder.name for run in group.runs] for group in found.groups]


@pytest.mark.slow
def test_copies_of_a_run_are_no_seeds_and_one_round_is_enough(short: Path, tmp_path: Path) -> None:
    copies = [changed(short, tmp_path / name) for name in ("copy", "again")]
    assert pooled([short, *copies, short]) == [["short"]]
    with svg_alone():
        page = write([short, *copies], tmp_path / "report")
    assert "Accuracy over rounds" in page.read_text()
    assert "Bits per parameter sent down" not in page.read_text(), "from round 2 on, of which there is none"
    tables = page.parent / "tables"
    head, row = csv.reader((tables / "overview.csv").read_text().splitlines())
    assert dict(zip(head, row, strict=True))["seeds"] == "1"
    assert "±" not in "".join(row)
    [line] = [line for line in (tables / "overview.tex").read_text().splitlines() if line.startswith("short & FedPM")]
    assert line.endswith(r"& 1 \\")
    assert r"\pm" not in line


def test_of_copies_the_one_that_is_finished_counts(short: Path, tmp_path: Path) -> None:
    begun = changed(short, tmp_path / "begun")
    (begun / "summary.json").unlink()
    assert pooled([begun, short]) == [["short"]]
    assert pooled([begun]) == [["begun"]]


def test_only_runs_that_differ_in_nothing_but_their_seed_are_pooled(short: Path, tmp_path: Path) -> None:
    other = changed(short, tmp_path / "other", ("seed = 0", "seed = 1"))
    assert pooled([short, other]) == [["short", "other"]]
    longer = changed(short, tmp_path / "longer", ("seed = 0", "seed = 1"), ("rounds = 1", "rounds = 6"))
    assert pooled([short, longer]) == [["short"], ["longer"]]
    faster = changed(short, tmp_path / "faster", ("seed = 0", "seed = 1"), ('lr = "auto"', "lr = 0.2"))
    eden = changed(short, tmp_path / "eden", ('algorithm = "fedpm"', 'algorithm = "eden"'))
    assert pooled([short, other, faster, eden]) == [["short", "other"], ["faster"], ["eden"]]


@pytest.mark.slow
def test_figures_of_unlike_runs_come_before_settings_and_nothing_follows_from_a_choice(
    short: Path, tmp_path: Path
) -> None:
    own = '[data]\nname = "own"'
    other = [
        [
            ("rounds = 1", "rounds = 6"),
            ('aggregator = "peer-filter"', 'aggregator = "mean"'),
            ("metrics = [", 'metrics = ["f1",'),
        ],
        [(own, '[data]\nname = "folder"\npath = "/a/wine.csv"')],
        [(own, '[data]\nname = "folder"\npath = "/b/iris.csv"')],
    ]
    folders = [short, *(changed(short, tmp_path / str(number), *changes) for number, changes in enumerate(other))]
    config = folders[1] / "config.toml"
    config.write_text(config.read_text().partition("[peer_filter]")[0])
    with svg_alone():
        page = write(folders, tmp_path / "report")
    head, *rows = csv.reader((page.parent / "tables" / "overview.csv").read_text().splitlines())
    assert head[:3] == ["run", "algorithm", "accuracy"]
    assert head[head.index("seeds") + 1 :] == ["rounds", "aggregator", "data.name", "task.metrics"]
    cells = [row[head.index("seeds") + 1 :] for row in rows]
    assert cells[1] == ["6", "mean", "own", "f1, accuracy"]
    assert [row[2] for row in cells] == ["own", "own", "wine.csv", "iris.csv"]


def test_a_table_of_runs_has_no_column_without_figures(short: Path, tmp_path: Path) -> None:
    number = changed(short, tmp_path / "number")
    for file in (number / "rounds.jsonl", number / "summary.json"):
        file.write_text(file.read_text().replace('"accuracy": ', '"mae": '))
    (table, *_) = tables(collect([number])[0])
    assert "accuracy" not in table.head
    assert "accuracy" in tables(collect([short])[0])[0].head
    assert all(cell.ours != "–" for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("axis", "label", "name"),
    [
        ("algorithm", "fedpm", "FedPM"),
        ("algorithm", "fedpm bits", "FedPM bits"),
        ("algorithm", "drive quantised", "DRIVE quantised"),
        ("algorithm", "mask 0.3", "mask 0.3"),
        ("method", "fedpm bits", "fedpm bits"),
        ("run", "fedpm", "fedpm"),
    ],
)
def test_a_figure_names_methods_and_their_variants_alike(axis: str, label: str, name: str) -> None:
    assert called(axis, label) == name


def test_a_run_without_a_round_is_left_out_of_a_folder_of_many_and_refused_alone(short: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    changed(short, runs / "done")
    for name, text in (("begun", ""), ("writing", '{"round": 1')):
        (changed(short, runs / name) / "rounds.jsonl").write_text(text)
    with pytest.warns(UserWarning, match=r"runs: left out, for no round has ended yet: begun, writing$"):
        assert pooled([runs]) == [["done"]]
    with pytest.raises(ArtifactError, match="begun: this run has not ended a round yet; wait for it"):
        pooled([runs / "begun"])
    shutil.rmtree(runs / "done")
    with pytest.raises(ArtifactError, match="runs: no run in it has ended a round yet; wait for one"):
        pooled([runs])
