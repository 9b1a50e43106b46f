"""Every Python example in the README, in docs/ and in examples/ runs."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedpm

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [(page.name, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)]
FLEET = ROOT / "examples/fleet.py"  # which tests/engines/flower/ runs
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {FLEET})


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=lambda value: value if len(value) < 40 else "")
def test_page_examples_run(page: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.slow
def test_package_example_runs() -> None:
    assert doctest.testmod(fedpm).failed == 0


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_pages_name_are_there() -> None:
    homes = [ROOT, ROOT / "src", ROOT / "src/fedpm", ROOT / "src/fedpm/methods"]
    named = re.compile(r"`(?!app/)((?:src|tests)/[\w/.]+|[\w/]+/\w+\.py)`")  # app/ is the reader's
    for page in [*PAGES, ROOT / "benchmarks/README.md", ROOT / "CONTRIBUTING.md"]:
        for path in named.findall(page.read_text()):
            assert any((home / path).exists() for home in homes), f"{page.name} names {path}"
