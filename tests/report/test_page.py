"""The page as a browser shows it: figures there, nothing fetched, no message on the console, in light and dark."""

import json
import re
import shutil
import subprocess
import webbrowser
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from fedpm.report.page import write
from fedpm.report.style import PALETTE
from tests.command import fedpm

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FIGURES = {
    "accuracy-bytes", "accuracy-rounds", "bpp-rounds", "paper-bpp-rounds", "downlink-rounds", "theta", "sparsity",
    "classes",
}  # fmt: skip
MEASURE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height, r.right]; };
const all = (q, f) => [...document.querySelectorAll(q)].map(f);
document.querySelectorAll("details").forEach(d => d.open = true);
document.body.append(Object.assign(document.createElement("pre"), {id: "measured", textContent: JSON.stringify({
  figures: Object.fromEntries(all("figure:not(.table)", e => [e.id, box(e.querySelector("svg"))])),
  paths: all("svg", e => e.querySelectorAll("path").length),
  cells: all("td", e => [e.innerText, box(e)[0], parseFloat(getComputedStyle(e).fontSize)]),
  fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
  page: document.documentElement.scrollWidth, window: innerWidth})}));
</script>"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write([studied], tmp_path_factory.mktemp("report") / "out")


def chromium(page: Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the page was not looked at in a browser")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *flags, f"--user-data-dir={home}", *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


def test_every_figure_and_table_is_a_file_too(page: Path) -> None:
    figures = {path.name for path in (page.parent / "figures").iterdir()}
    assert figures == {f"{name}.{form}" for name in FIGURES for form in ("png", "svg", "pdf")}
    assert {path.stem for path in (page.parent / "tables").iterdir()} >= {"accuracy", "overview", "settings"}
    assert (page.parent / "figures" / "theta.pdf").read_bytes().startswith(b"%PDF")


def test_the_command_makes_the_page_and_opens_it(
    studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "opened"}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # it reads that variable once a process
    done = fedpm("report", studied / "2_fedpm_seed0", "--open", "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    page = tmp_path / "out" / "index.html"
    assert f"page      {page}" in done.stdout
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()


def test_the_page_names_no_other_file(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)", text)
    assert all(a.startswith(("#", "data:")) or b.startswith("#") for a, b in linked)
    assert "@import" not in text
    names = re.findall(r" id=\"([^\"]*)\"", text)
    assert len(names) == len(set(names))


def test_a_browser_shows_all_figures_and_readable_tables(page: Path, tmp_path: Path) -> None:
    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    done = chromium(measured, tmp_path / "home", "--window-size=520,900", "--dump-dom")
    found = json.loads(re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.S)[1].replace("&amp;", "&"))  # type: ignore[index]
    assert {name.removeprefix("s0-") for name in found["figures"]} == FIGURES
    assert all(width > 300 and height > 100 for width, height, _ in found["figures"].values())
    assert min(found["paths"]) > 5
    assert found["fetched"] == []
    assert found["page"] <= found["window"]  # wide things scroll by themselves
    assert all(width > 10 and size >= 12 for _, width, size in found["cells"])
    assert any(text.split() == ["0.75", "±", "0.01"] or "0.75 ± 0.01" in text for text, _, _ in found["cells"])


@pytest.mark.parametrize(("scheme", "place", "light"), [("light", 0, True), ("dark", 1, False)])
def test_colours_follow_the_scheme(page: Path, tmp_path: Path, scheme: str, place: int, light: bool) -> None:
    shot = tmp_path / "page.png"
    wanted = f"--blink-settings=preferredColorScheme={int(light)}"
    chromium(page, tmp_path / "home", wanted, "--window-size=1280,1400", f"--screenshot={shot}")
    pixels = np.rint(image.imread(shot)[..., :3] * 255).astype(int)
    assert (pixels[5, 5].mean() > 128) == light
    for name in ("blue", "wine"):  # the lines of fedpm and of eden
        value = PALETTE[name][place].lstrip("#")
        colour = [int(value[i : i + 2], 16) for i in (0, 2, 4)]
        assert (np.abs(pixels - colour).max(-1) <= 4).sum() > 100, f"{name} is not there in {scheme}"
