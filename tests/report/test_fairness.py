"""For whom a network is worst: figures and a table, a method beside another."""

import csv
from pathlib import Path

import pytest

import fedpm
from fedpm.registry import METHODS
from fedpm.report.fairness import by_client, class_names
from fedpm.report.figures import figures
from fedpm.report.page import write
from fedpm.report.style import PALETTE, colour
from fedpm.study.results import collect
from tests.experiment.test_judging import WORDS, hospitals
from tests.report.light import svg_alone
from tests.small import small_config, small_net

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("hospitals")
    for algorithm in ("fedpm", "fedavg"):
        config = small_config(algorithm=algorithm, rounds=2, data={}, evaluation={"at": "clients", "local": True})
        fedpm.run(config, net=small_net(), data=hospitals(), out=folder / algorithm)
    return [folder / "fedpm", folder / "fedavg"]


def test_the_page_says_who_is_served_worst(runs: list[Path], tmp_path: Path) -> None:
    with svg_alone():
        page = write(runs, tmp_path)
    rows = list(csv.DictReader((tmp_path / "tables" / "fairness.csv").open()))
    outcomes = collect(runs)[0].runs
    assert [row["algorithm"] for row in rows] == ["FedPM", "FedAvg"]
    for row, run in zip(rows, outcomes, strict=True):
        worst = run.summary["worst_client"]
        assert row["worst client"] == f"{worst['accuracy']:.3f} ({worst['client']})"
        least = min(value for value in run.summary["class_accuracy"] if value is not None)
        assert row["worst class"].startswith(f"{least:.3f} (")
    text = page.read_text()
    assert "For whom it is worst" in text
    for name in ("class-accuracy", "client-scores"):
        assert (tmp_path / "figures" / f"{name}.svg").is_file()
    assert all(name in (tmp_path / "figures" / "classes.svg").read_text() for name in ("oslo", "bergen", "tromsø"))


def test_scores_of_clients_bear_their_names(runs: list[Path]) -> None:
    run = collect(runs)[0].runs[0]
    assert class_names(run) == WORDS.tolist()
    for kind in ("client_scores", "client_before", "client_after"):
        assert list(by_client(run, kind)) == ["oslo", "bergen", "tromsø"]


def test_classes_have_their_names_and_whole_dots(runs: list[Path]) -> None:
    drawn = {one.name: one.figure.axes[0] for one in figures(collect(runs)[0])}
    assert [label.get_text() for label in drawn["classes"].get_xticklabels()] == WORDS.tolist()
    axes = drawn["class-accuracy"]
    low, high = sorted(axes.transData.transform([(0, edge) for edge in axes.get_ylim()])[:, 1])
    for line in axes.get_lines():
        heights = axes.transData.transform(line.get_xydata())[:, 1]
        half = line.get_markersize() / 2 * axes.figure.dpi / 72
        assert low + half < heights.min()
        assert heights.max() < high - half


def test_a_run_without_accuracy_has_a_page_too(tmp_path: Path) -> None:
    fedpm.run(small_config(rounds=1), net=small_net(), out=tmp_path / "run", metrics=["loss", "f1"])
    collection = collect([tmp_path / "run"])[0]
    assert "accuracy-rounds" not in {drawn.name for drawn in figures(collection)}
    assert "f1-rounds" in {drawn.name for drawn in figures(collection)}
    with svg_alone():
        text = write([tmp_path / "run"], tmp_path / "out").read_text()
    assert "test loss after 1 round" in text


def test_every_method_has_a_colour_of_its_own() -> None:
    names = [name for name in METHODS.names() if METHODS[name].build.__module__.startswith("fedpm.")]
    assert len({colour(name, 0) for name in names}) == len(names) <= len(PALETTE)
