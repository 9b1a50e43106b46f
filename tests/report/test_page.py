"""The page as a browser shows it: figures there, nothing fetched, no message on the console, in light and dark."""

import re
import webbrowser
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from fedpm.report.page import write
from fedpm.report.style import PALETTE
from fedpm.report.style import colour as colour_of
from tests.command import fedpm
from tests.report.browser import chromium, measure
from tests.report.light import svg_alone

FIGURES = {
    "accuracy-bytes", "accuracy-rounds", "loss-rounds", "train-loss-rounds", "bpp-rounds", "paper-bpp-rounds",
    "downlink-rounds", "frontier", "theta", "sparsity", "classes", "class-accuracy",
}  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write([studied], tmp_path_factory.mktemp("report") / "out")


def test_every_figure_and_table_is_a_file_too(page: Path) -> None:
    figures = {path.name for path in (page.parent / "figures").iterdir()}
    assert figures == {f"{name}.{form}" for name in FIGURES for form in ("png", "svg", "pdf")}
    assert {path.stem for path in (page.parent / "tables").iterdir()} >= {"accuracy", "overview", "settings"}
    assert (page.parent / "figures" / "theta.pdf").read_bytes().startswith(b"%PDF")
    svg = (page.parent / "figures" / "theta.svg").read_text()
    first = next(part for part in ElementTree.fromstring(svg) if part.tag.endswith(("}g", "}rect")))  # noqa: S314
    assert first.attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}, "a file is on white"
    assert 'height="100%" fill' not in page.read_text(), "a figure of the page is on the page's colour"


def test_the_command_makes_the_page_and_opens_it(
    studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "opened"}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # it reads that variable once a process
    with svg_alone():
        done = fedpm("report", studied / "2_fedpm_seed0", "--open", "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    page = tmp_path / "out" / "index.html"
    assert f"page      {page}" in done.stdout
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()


def test_a_report_that_cannot_be_written_is_told_with_its_own_name(studied: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "index.html").mkdir(parents=True)
    with svg_alone():
        done = fedpm("report", studied / "2_fedpm_seed0", "--out", tmp_path / "out")
    page = tmp_path / "out" / "index.html"
    sentence = f"fedpm: {page}: cannot be written (Is a directory); choose another place, where you may write\n"
    assert (done.code, done.stderr) == (1, sentence)


def test_the_page_names_no_other_file(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)", text)
    assert all(a.startswith(("#", "data:")) or b.startswith("#") for a, b in linked)
    assert "@import" not in text
    names = re.findall(r" id=\"([^\"]*)\"", text)
    assert len(names) == len(set(names))


@pytest.fixture(scope="module")
def seen(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    return measure(page, tmp_path_factory.mktemp("seen"), 400, 520)


@pytest.mark.parametrize("width", [400, 520])
def test_a_browser_shows_all_figures_and_readable_tables(seen: dict[int, dict[str, Any]], width: int) -> None:
    found = seen[width]
    assert {name.removeprefix("s0-") for name in found["figures"]} == FIGURES
    assert all(x2 - x1 > 300 and y2 - y1 > 100 for x1, y1, x2, y2 in found["figures"].values())
    assert min(found["paths"]) > 5
    assert found["fetched"] == []
    assert found["page"] <= found["window"]  # wide things scroll by themselves
    assert all(x2 - x1 > 10 and size >= 12 for _, (x1, _, x2, _), size in found["cells"])
    assert any(text.split() == ["0.75", "±", "0.01"] or "0.75 ± 0.01" in text for text, _, _ in found["cells"])


@pytest.mark.parametrize(("scheme", "light"), [("light", True), ("dark", False)])
def test_colours_follow_the_scheme(page: Path, tmp_path: Path, scheme: str, light: bool) -> None:
    shot = tmp_path / "page.png"
    wanted = f"--blink-settings=preferredColorScheme={int(light)}"
    chromium(page, tmp_path / "home", wanted, "--window-size=1280,1400", f"--screenshot={shot}")
    pixels = np.rint(image.imread(shot)[..., :3] * 255).astype(int)
    assert (pixels[5, 5].mean() > 128) == light
    dark = {both[0]: both[1] for both in PALETTE.values()}
    for name in ("fedpm", "eden"):
        value = (colour_of(name, 0) if light else dark[colour_of(name, 0)]).lstrip("#")
        colour = [int(value[i : i + 2], 16) for i in (0, 2, 4)]
        assert (np.abs(pixels - colour).max(-1) <= 4).sum() > 100, f"{name} is not there in {scheme}"
