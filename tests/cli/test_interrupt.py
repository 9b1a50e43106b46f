"""Ctrl-C: a sentence wherever it comes, never a traceback and never silence."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpm.__main__ import main
from tests.command import FEDPM, fedpm


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_while_a_report_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedpm.report.page.write", interrupted)
    done = fedpm("report", tmp_path)
    remedy = f"{tmp_path / 'report'} is not complete, and the same command makes it anew"
    assert (done.code, done.stderr) == (130, f"fedpm: interrupted; {remedy}\n")


def test_in_a_command_that_does_not_expect_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpm.data.local.locate", interrupted)
    done = fedpm("data", "list")
    assert (done.code, done.stderr) == (130, "fedpm: interrupted\n")


def test_before_the_command_line_is_loaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fedpm.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "fedpm: interrupted\n")


AMID_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(name, path, target=None):
        if name == os.environ.get("INTERRUPTED_AT"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
"""


@pytest.mark.parametrize("module", ["fedpm.cli", "typer", "fedpm.experiment.api", "torch"])
def test_while_the_program_is_imported(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AMID_IMPORT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPTED_AT": module}
    done = subprocess.run([FEDPM, "run"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "fedpm: interrupted\n")


def test_nothing_is_imported_before_an_interrupt_is_a_sentence() -> None:
    code = "import sys; before = {*sys.modules}; import fedpm.__main__; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fedpm fedpm.__main__\n", "what these import can still be a traceback"
