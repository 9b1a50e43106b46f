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
class Outcome:
    """What a command leaves: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def fedpm(*arguments: str | Path, cwd: Path = Path()) -> Outcome:
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
    return Outcome(code, out.getvalue(), err.getvalue())


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait for something that a running process will do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the process ended before that"
        assert time.monotonic() < deadline
        time.sleep(0.01)
