"""The tables of the docs are those of the published results."""

from pathlib import Path

import pytest
from results.tables import written

from fedpm.report.curves import panels
from fedpm.study.results import collect

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_results_are_those_of_their_runs() -> None:
    assert (ROOT / "results/README.md").read_text() == written(), "run python results/tables.py"


@pytest.mark.parametrize(("page", "tables"), [("baselines.md", 6), ("reproducing.md", 8), ("pretrained.md", 4)])
def test_tables_of_a_page_hold_rows_of_the_results(page: str, tables: int) -> None:
    published = set((ROOT / "results/README.md").read_text().splitlines())
    lines = (ROOT / "docs" / page).read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if line in published and line.startswith("| ")]
    heads = [number for number in heads if lines[number + 1].startswith("|--")]
    assert len(heads) >= tables
    for head in heads:
        rows = lines[head + 2 : lines.index("", head)]
        assert [row for row in rows if row not in published] == []


def test_methods_are_lines_and_splits_are_panels() -> None:
    (collection,) = collect([ROOT / "results/pretrained-images"])
    series, found = panels(collection)
    assert series == "method"
    assert list(found) == ["split = IID", "split = 4 classes"]
