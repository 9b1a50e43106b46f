"""Every Python example in the README, in docs/ and in examples/ runs."""

import doctest
import re
from collections.abc import Callable
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from examples import tasks

import fedpm

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page.name, code)
    for page in PAGES
    if page.name != "extending.md"  # tests/test_extending.py holds those
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
]
ELSEWHERE = {ROOT / "examples/fleet.py", ROOT / "examples/tasks.py"}  # tests/engines/flower/ runs it; and below
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - ELSEWHERE)
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.py"))
TRAINING = [pytest.mark.slow]
CASES = [
    pytest.param(code, id=f"{page}-{number}", marks=TRAINING if "fedpm.run(" in code else [])
    for number, (page, code) in enumerate(BLOCKS)
]


@pytest.mark.parametrize("code", CASES)
def test_page_examples_run(code: str, small_run: tuple[Path, fedpm.Result], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "try").symlink_to(small_run[0])  # the run that pages speak of
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(tmp_path):
        exec(code, names)  # noqa: S102
    if code in (ROOT / "README.md").read_text():
        assert names["result"].summary["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    import_module(f"examples.{example.stem}").main()  # by name, so that workers could import its network too
    assert "accuracy" in capsys.readouterr().out
    assert example.read_text().endswith('\n\nif __name__ == "__main__":\n    main()\n')


def _short(run: Callable[..., fedpm.Result]) -> Callable[..., fedpm.Result]:
    return lambda *given, rounds, **settings: run(*given, rounds=min(rounds, 4), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.name)
def test_tutorials_run(
    tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fedpm, "run", _short(fedpm.run))  # make docs runs them in full
    exec(compile(tutorial.read_text(), str(tutorial), "exec"), {"__name__": "__main__"})  # noqa: S102
    said = capsys.readouterr().out
    best = max(float(number) for number in re.findall(r"\b0\.\d{3}\b", said))
    assert best > 0.75, said


def test_every_page_has_its_place_on_the_site() -> None:
    placed = (ROOT / "mkdocs.yml").read_text()
    for page in [*sorted((ROOT / "docs").rglob("*.md")), *TUTORIALS]:
        assert str(page.relative_to(ROOT / "docs")) in placed, f"{page} is not in mkdocs.yml"


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    assert [name for name in fedpm.__all__ if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric", "least"),
    [(tasks.regression, "r2", 0.2), (tasks.labels, "f1", 0.85), (tasks.segmentation, "f1", 0.7)],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_other_tasks_are_learned(task: Callable[[], fedpm.Result], metric: str, least: float) -> None:
    metrics = task().summary["metrics"]
    assert next(iter(metrics)) == metric
    assert (metrics[metric] or 0) > least


@pytest.mark.slow
def test_text_of_clients_with_names_is_learned() -> None:
    result = tasks.text()
    assert result.rounds[0]["names"] == ["argparse", "inspect", "textwrap"]
    assert result.summary["accuracy"] > 0.7  # of two classes


@pytest.mark.slow
def test_package_example_runs() -> None:
    assert doctest.testmod(fedpm).failed == 0


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, *TUTORIALS, *ROOT.glob("*.md"), ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_into_pages_lead_to_headings() -> None:
    slugs = {page: {_slug(title) for title in re.findall(r"^#+ (.*)", page.read_text(), re.M)} for page in PAGES}
    for page in [*PAGES, *TUTORIALS]:
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text()):
            there = (page.parent / target).resolve() if target else page
            assert anchor in slugs[there], f"{page.name} links to {target}#{anchor}"


def _slug(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def test_an_install_into_a_clone_stays_editable() -> None:
    for page in [*PAGES, *TUTORIALS]:
        copies = re.findall(r"pip install (?:-c \S+ )?'?\.[\[\s].*", page.read_text())
        assert not copies, f"{page.name}: {copies}"


def test_tests_that_pages_name_are_there() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", (ROOT / "docs/drills.md").read_text())
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_files_that_pages_name_are_there() -> None:
    homes = [ROOT, ROOT / "src", ROOT / "src/fedpm", ROOT / "src/fedpm/methods"]
    named = re.compile(r"`(?!app/)((?:src|tests)/[\w/.]+|[\w/]+/\w+\.py)`")  # app/ is the reader's
    for page in [*PAGES, ROOT / "benchmarks/README.md", ROOT / "CONTRIBUTING.md"]:
        for path in named.findall(page.read_text()):
            assert any((home / path).exists() for home in homes), f"{page.name} names {path}"
