"""A page as chromium shows it: pictures of it, and the boxes of what is on it, at any width."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MEASURE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const all = (q, f, within = document) => [...within.querySelectorAll(q)].map(f);
const end = e => { e.scrollLeft = 1e6; const moved = e.scrollLeft; e.scrollLeft = 0; return moved; };
document.querySelectorAll("details").forEach(d => d.open = true);
const measured = JSON.stringify({
  figures: Object.fromEntries(all("figure:not(.table)", e => [e.id, box(e.querySelector("svg"))])),
  texts: Object.fromEntries(all("figure:not(.table)", e => [e.id, all("svg text", t => [t.textContent, box(t)], e)])),
  paths: all("svg", e => e.querySelectorAll("path").length),
  cells: all("td", e => [e.innerText, box(e), parseFloat(getComputedStyle(e).fontSize)]),
  order: all("figure", e => e.id || e.className),
  cards: all("article", e => e.innerText),
  tables: all("figure.table .scroll", e => [e.clientWidth, e.scrollWidth, end(e), getComputedStyle(e).backgroundImage]),
  fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
  page: document.documentElement.scrollWidth, window: innerWidth});
parent.postMessage(measured, "*");
</script>"""
SCREEN = """<!doctype html><body style="margin:0"><script>
const show = text => Object.assign(document.createElement("pre"), {className: "measured", textContent: text});
onmessage = e => document.body.append(show(e.data));
</script>%s</body>"""
FRAME = '<iframe src="measured.html" style="border:0;width:%dpx;height:900px"></iframe>'


def chromium(page: Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page; a message on its console is a fault."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the page was not looked at in a browser")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *flags, f"--user-data-dir={home}", *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


def measure(page: Path, scratch: Path, *widths: int) -> dict[int, dict[str, Any]]:
    """Return the boxes of a page in frames of some widths: a window of chromium's own is never below 500."""
    scratch.mkdir(exist_ok=True)
    (scratch / "measured.html").write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    (scratch / "frames.html").write_text(SCREEN % "".join(FRAME % width for width in widths))
    done = chromium(scratch / "frames.html", scratch / "home", "--virtual-time-budget=4000", "--dump-dom")
    found: dict[int, dict[str, Any]] = {}
    for text in re.findall(r'<pre class="measured">(.*?)</pre>', done.stdout, re.S):
        boxes = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        found[boxes["window"]] = boxes
    assert set(found) == set(widths), done.stdout[-500:]
    return found


def overlaps(texts: list[tuple[str, list[float]]]) -> list[tuple[str, str]]:
    """Return the pairs of words whose boxes overlap by more than a pixel both ways."""
    return [
        (one, other)
        for place, (one, (left, top, right, bottom)) in enumerate(texts)
        for other, (l2, t2, r2, b2) in texts[place + 1 :]
        if min(right, r2) - max(left, l2) > 1 and min(bottom, b2) - max(top, t2) > 1
    ]
