"""The tables of the docs are those of the published results."""

from pathlib import Path

import pytest

from fedpm.report.curves import panels
from fedpm.study.overview import mean_and_deviation, overview
from fedpm.study.results import collect

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("study", "page", "rounds"),
    [
        ("iid-mnist", "baselines.md", (5, 10, 15, 25)),
        ("mnist-paper", "reproducing.md", (1, 2, 3, 4, 5)),
        ("iid-cifar10", "reproducing.md", (5, 10, 20)),
        ("rivals", "baselines.md", (10, 20)),
        ("pretrained-images", "pretrained.md", (2, 5, 10)),
        ("pretrained-text", "pretrained.md", (2, 4, 8)),
    ],
)
def test_the_tables_of_a_page_are_those_of_its_results(study: str, page: str, rounds: tuple[int, ...]) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    (collection,) = collect([ROOT / "results" / study])
    head, rows = overview(collection)
    assert rows
    assert [row for row in [head, *rows] if f"| {' | '.join(row)} |" not in lines] == []
    for group in collection.groups:
        reached = [[run.records[number - 1]["accuracy"] for run in group.runs] for number in rounds]
        cells = [*group.labels.values(), *(mean_and_deviation(values) for values in reached)]
        assert f"| {' | '.join(cells)} |" in lines


def test_methods_are_lines_and_splits_are_panels() -> None:
    (collection,) = collect([ROOT / "results/pretrained-images"])
    series, found = panels(collection)
    assert series == "method"
    assert list(found) == ["split = IID", "split = 4 classes"]
