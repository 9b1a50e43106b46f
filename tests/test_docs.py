"""Every Python example in the README, in docs/ and in examples/ runs."""

import doctest
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

import fedpm

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, code)
    for page in PAGES
    if page.name != "extending.md"  # tests/test_extending.py holds those
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
]
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {ROOT / "examples/fleet.py"})  # tests/engines/flower/ does
CASES = [
    pytest.param(code, id=f"{page}-{number}", marks=[pytest.mark.slow] if "fedpm.run(" in code else [])
    for number, (page, code) in enumerate(BLOCKS)
]


@pytest.mark.parametrize("code", CASES)
def test_page_examples_run(code: str, small_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "try").symlink_to(small_run[0])  # the run that pages speak of
    with chdir(tmp_path):
        exec(code, {"__name__": "__main__"})  # noqa: S102


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
