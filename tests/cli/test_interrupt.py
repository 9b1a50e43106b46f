"""Ctrl-C: a sentence wherever it comes, never a traceback and never silence."""

from pathlib import Path
from typing import Any

import pytest

from fedpm.__main__ import main
from tests.command import fedpm


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_while_a_report_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedpm.report.page.write", interrupted)
    done = fedpm("report", tmp_path)
    remedy = f"{tmp_path / 'report'} is not complete, and the same command makes it anew"
    assert (done.code, done.stderr) == (1, f"fedpm: interrupted; {remedy}\n")


def test_in_a_command_that_does_not_expect_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpm.data.local.locate", interrupted)
    done = fedpm("data", "list")
    assert (done.code, done.stderr) == (1, "fedpm: interrupted\n")


def test_before_the_command_line_is_loaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fedpm.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (1, "fedpm: interrupted\n")
