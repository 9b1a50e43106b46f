"""Tables of real runs: ours, the paper's beside them, as HTML, CSV and LaTeX."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from fedpm.errors import ArtifactError, ConfigError
from fedpm.report.curves import apart, fitted
from fedpm.report.tables import Cell, Table, settings_table, tables
from fedpm.study.results import collect


@pytest.mark.slow
def test_tables_hold_our_figures_and_the_papers(studied: Path) -> None:
    found = {table.name: table for table in tables(collect([studied])[0])}
    head, *rows = csv.reader(io.StringIO(found["accuracy"].to_csv()))
    ours = {name: json.loads((studied / f"2_{name}_seed0" / "summary.json").read_text()) for name in ("fedpm", "eden")}
    assert head == [
        "split", "algorithm = fedpm", "algorithm = fedpm (paper)", "algorithm = eden", "algorithm = eden (paper)",
    ]  # fmt: skip
    accuracies = [f"{ours[name]['accuracy']:.3f}" for name in ("fedpm", "eden")]
    assert rows == [["2", accuracies[0], "0.75 ± 0.01", accuracies[1], "0.5"]]
    overview = dict(zip(*list(csv.reader(io.StringIO(found["overview"].to_csv())))[:2], strict=True))
    assert overview["accuracy"] == accuracies[0]
    assert overview["accuracy (paper)"] == "0.75 ± 0.01"
    assert overview["bpp up"] == f"{ours['fedpm']['uplink_bpp']:.3f}"
    sent = ours["fedpm"]["uplink_bytes"] + ours["fedpm"]["downlink_bytes"]
    assert overview["MB"] == f"{sent / 1e6:.3g}"


def test_latex_escapes_what_latex_would_read() -> None:
    table = Table("x", "50 % of a_b & c", "", ["ρ", "v"], 1, [[Cell("a_b"), Cell("0.5 ± 0.1", "1")]])
    text = table.to_latex()
    assert r"\caption{50 \% of a\_b \& c. }" in text
    assert r"$\rho$ & v & v (paper) \\" in text
    assert r"a\_b & 0.5 $\pm$ 0.1 & 1 \\" in text
    assert r"\begin{tabular}{lrr}" in text


def test_columns_that_belong_together_have_a_heading() -> None:
    head = ["algorithm", "accuracy", "bpp up", "bpp down", "MB", "MB to 0.9", "seeds"]
    above, below = Table("x", "", "", head, 1, []).to_html().partition("<thead>")[2].split("</tr><tr>")
    assert re.findall(r">([^<]+)<", above) == [
        "algorithm", "accuracy", "bits per parameter and client", "MB of all clients, both ways", "seeds",
    ]  # fmt: skip
    assert re.findall(r">([^<]+)<", below) == ["up", "down", "in all", "to 0.9"]
    assert re.findall(r'(?:row|col)span="(\d)"', above) == ["2"] * 5  # two rows, or two columns


def test_html_is_escaped() -> None:
    table = Table("x", "<script>", "", ["<b>"], 0, [[Cell("<i>", "<u>")]])
    assert not {"<script>", "<b>", "<i>", "<u>"} & set(table.to_html().replace("<", " <").split())


@pytest.mark.slow
def test_settings_are_those_that_all_runs_share(studied: Path) -> None:
    shown = {row[0].ours: row[1].ours for row in settings_table(collect([studied])[0]).rows}
    assert shown["data.train_examples"] == "120"
    assert "algorithm" not in shown
    assert shown["torch (version)"].startswith("2.")
    assert shown["parameters of the network"] == "117,754"


@pytest.mark.slow
def test_loose_runs_are_grouped_by_what_they_differ_in(studied: Path) -> None:
    (found,) = collect([studied / "2_fedpm_seed0", studied / "2_eden_seed0"])
    assert found.axes == ["algorithm"]
    assert [group.name for group in found.groups] == ["FedPM", "EDEN"]


@pytest.mark.slow
def test_what_does_not_belong_to_a_study_is_left_out(studied: Path, tmp_path: Path) -> None:
    shutil.copytree(studied, tmp_path / "copy")
    for name in ("notes", "3_fedpm_seed0", "2_eden_seed1"):
        shutil.copytree(studied / "2_fedpm_seed0", tmp_path / "copy" / name)
    (tmp_path / "copy" / "2_eden_seed1" / "rounds.jsonl").write_text("")  # only just begun
    with (tmp_path / "copy" / "2_fedpm_seed0" / "rounds.jsonl").open("a") as log:
        log.write('{"round": 3, "accu')  # being written
    (found,) = collect([tmp_path / "copy"])
    assert [run.folder.name for run in found.runs] == ["2_fedpm_seed0", "2_eden_seed0"]
    assert len(found.runs[0].records) == 2


@pytest.mark.slow
def test_rows_of_a_study_can_be_chosen(studied: Path) -> None:
    (found,) = collect([studied])
    assert [group.labels["algorithm"] for group in found.only(["eden"]).groups] == ["eden"]
    assert found.only([]).groups == found.groups
    assert [group.labels["algorithm"] for group in found.only(["eden", "2"]).groups] == ["eden"], "axes are combined"
    with pytest.raises(ConfigError, match=r"no row is called 'edem'; did you mean eden\? There are: 2, "):
        found.only(["eden", "edem"])


def test_a_folder_without_runs_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="neither a run folder nor a study's"):
        collect([tmp_path])


def test_titles_of_panels_are_broken_to_their_width() -> None:
    long = "data.classes_per_client = 2, clients.total = 100, local.epochs = 3"
    (title, short) = fitted([long, "a"], 2.6)
    assert title.split() == long.split()
    assert max(len(line) for line in title.splitlines()) <= 2.6 / 0.085
    assert short == "a"


def test_names_of_lines_keep_apart_and_stay_near() -> None:
    assert apart([0.0, 5.0, 9.0], 1.0) == [0.0, 5.0, 9.0]
    assert apart([4.0, 4.0, 4.0], 1.0) == [3.0, 4.0, 5.0]
    assert apart([0.0, 0.2, 9.0], 1.0) == pytest.approx([-0.4, 0.6, 9.0])
    assert apart([0.0, 8.9, 9.0], 1.0, top=9.0) == pytest.approx([0.0, 8.0, 9.0])
