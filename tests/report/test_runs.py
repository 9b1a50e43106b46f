"""The page of a few runs that belong to no study: the commonest use of all."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedpm.experiment.record import byte_size
from fedpm.report.figures import figures
from fedpm.report.page import write
from fedpm.report.runs import run_names, title
from fedpm.study.results import collect
from tests.report.browser import measure, overlaps
from tests.report.light import svg_alone

LONG = "a-second-attempt-with-a-name-that-is-long"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: of two rounds, of two with another algorithm and much else, and of one."""
    folder = tmp_path_factory.mktemp("loose")
    for name, source in (("first", "eden"), (LONG, "fedpm"), ("one", "fedpm")):
        shutil.copytree(studied / f"2_{source}_seed0", folder / name)
    log, config = folder / "one" / "rounds.jsonl", folder / "one" / "config.toml"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    changed = re.sub(r"rounds = 2", "rounds = 1", config.read_text())
    config.write_text(re.sub(r"classes_per_client = 5", "classes_per_client = 6", changed))
    return folder


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with svg_alone():
        return write([runs / "first", runs / LONG, runs / "one"], tmp_path_factory.mktemp("report") / "out")


@pytest.fixture(scope="module")
def seen(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What a browser makes of the page, on a phone and on a desk."""
    return measure(page, tmp_path_factory.mktemp("seen"), 400, 1200)


def test_each_run_has_a_headline(seen: dict[int, dict[str, Any]], runs: Path) -> None:
    cards = seen[1200]["cards"]
    assert [card.splitlines()[0] for card in cards] == ["first", LONG, "one"]
    assert all(str(runs) in card for card in cards)
    summary = json.loads((runs / LONG / "summary.json").read_text())
    assert f"{summary['accuracy']:.3f} test accuracy after 2 rounds" in cards[1]
    sent = summary["uplink_bytes"] + summary["downlink_bytes"]
    less = 2 * 2 * 2 * 4 * summary["parameters"] / sent  # rounds, clients, ways, bytes of a float
    up, down = (byte_size(summary[key]) for key in ("uplink_bytes", "downlink_bytes"))
    assert f"{up} up, {down} down: {less:,.0f}× less than float32" in cards[1]
    assert "EDEN · digits · conv4-slim" in cards[0]
    assert "FedPM · digits · conv4-slim · seed 0" in cards[1]
    assert "test accuracy after 1 round\n" in cards[2]


def test_the_table_comes_first_and_names_the_folders(seen: dict[int, dict[str, Any]], page: Path) -> None:
    assert seen[1200]["order"][:2] == ["table overview", "s0-accuracy-bytes"]
    head, *rows = (line.split(",") for line in (page.parent / "tables" / "overview.csv").read_text().splitlines())
    assert head[:2] == ["run", "algorithm"]
    assert [row[0] for row in rows] == ["first", LONG, "one"]
    assert all(float(row[head.index("MB")]) > 0 for row in rows)  # never 0.0


def test_all_runs_are_lines_of_one_panel(page: Path) -> None:
    text = page.read_text()
    for figure in ("accuracy-bytes", "accuracy-rounds", "loss-rounds", "train-loss-rounds", "bpp-rounds"):
        drawn = text[text.index(f'id="s0-{figure}"') :].partition("</figure>")[0]
        lines = re.findall(rf'id="s0-{figure}-line-([^"]*)"', drawn)
        assert len(lines) == 3
        assert drawn.count(f'id="s0-{figure}-axes_') == 1


@pytest.mark.parametrize("width", [400, 1200])
def test_no_words_of_a_figure_overlap_or_leave_it(seen: dict[int, dict[str, Any]], width: int) -> None:
    found = seen[width]
    for name, texts in found["texts"].items():
        left, top, right, bottom = found["figures"][name]
        assert overlaps(texts) == [], name
        for words, (x1, y1, x2, y2) in texts:
            assert left - 2 < x1 < x2 < right + 2, words
            assert top - 2 < y1 < y2 < bottom + 2, words
            assert not re.search(r"\de[−-]\d", words), name  # an offset or an exponent
    titles = [words for words, _ in found["texts"]["s0-theta"]]
    assert {f"…{LONG[-25:]}", "one"} <= set(titles)


def test_tables_show_on_a_phone_that_they_scroll(seen: dict[int, dict[str, Any]]) -> None:
    found = seen[400]
    assert found["page"] <= 400
    shown, whole, moved, edge = found["tables"][0]
    assert shown < 400 < whole
    assert moved == pytest.approx(whole - shown, abs=1)
    assert edge.count("linear-gradient") == 4


def test_one_round_is_drawn_as_far_as_it_goes(runs: Path) -> None:
    drawn = {one.name: one.figure for one in figures(collect([runs / "one"])[0])}
    assert set(drawn) >= {"accuracy-bytes", "theta", "sparsity", "classes"}
    assert "downlink-rounds" not in drawn  # which begins with the second
    ticks = [tick for tick in drawn["accuracy-rounds"].axes[0].get_xticks() if 0.9 < tick < 1.1]
    assert ticks == [1.0]


def test_figures_that_hardly_differ_keep_plain_ticks(runs: Path) -> None:
    (found,) = collect([runs / LONG])
    for number, record in enumerate(found.runs[0].records):
        record["uplink_paper_bpp"] = 0.99999 + 1e-7 * number
    axes = next(one.figure for one in figures(found) if one.name == "paper-bpp-rounds").axes[0]
    axes.figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert len(set(shown)) == len(shown) >= 3
    assert max(map(len, shown)) <= 5


def test_names_are_as_short_as_they_can_be(runs: Path) -> None:
    folders = [Path("/x/runs/a"), Path("/x/runs/b"), Path("/y/runs/a")]
    assert list(run_names(folders).values()) == ["x/runs/a", "b", "y/runs/a"]
    (found,) = collect([runs])
    assert title(found) == f"Runs {LONG}, first and one"
