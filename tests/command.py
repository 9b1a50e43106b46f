"""The command line, called in this process, which costs no start, or started as users do."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from fedpm.cli import main

FEDPM = str(Path(sys.executable).with_name("fedpm"))
"""The installed program: for what needs a process, such as signals, imports and the entry point itself."""


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


def fedpm(*arguments: str | Path, cwd: Path = Path()) -> Done:
    """Run the program's main function here; an exception that would be a traceback comes out as it is."""
    code: int | str | None = 0
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedpm", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``fedpm WORDS...`` in an empty folder and without settings of the machine's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fedpm


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait for something that a running process will do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the process ended before that"
        assert time.monotonic() < deadline
        time.sleep(0.01)
