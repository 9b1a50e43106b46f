"""Branch coverage of ``src/``: ``python -m pytest -p tests.covered``, with ``-n`` or without.

SlipCover puts probes into the code as it is imported, which costs a few per cent. Coverage.py, which Python 3.11 calls
at every line, made the suite half as long again. Their totals differ a little: SlipCover counts lines, coverage.py
statements. What runs in processes that tests start is seen by neither.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import slipcover

PACKAGE = Path(__file__).parents[1] / "src" / "fedpm"
LEAST = 90.0  # per cent of lines and branches
UNSEEN = ["*/wire/coders/compiled.py", "*/engines/flower/simulation.py"]
"""Code that goes elsewhere, where probes cannot go: numba compiles the one, and Ray copies functions of the other."""
NO_CODE = ["@overload", r":\s*\.\.\.$", r"^\s*\.\.\.$"]  # protocols say what there is, and are not called
NEVER = sys.maxsize  # to take probes out again replaces functions that run: what they cost is less than that risk

_probes = slipcover.Slipcover(branch=True, d_miss_threshold=NEVER, omit=UNSEEN, exclude_also=NO_CODE)
slipcover.ImportManager(_probes, slipcover.FileMatcher(sources=[PACKAGE], omit=UNSEEN)).__enter__()
_of_workers: list[str] = []
WHOLE = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--missing", action="store_true", help="list the lines and branches that no test reaches")


def pytest_testnodedown(node: object) -> None:
    """Keep what a process of the suite has seen; one that died has said nothing."""
    if "seen" in (output := getattr(node, "workeroutput", {})):
        _of_workers.append(output["seen"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what this process has seen, or add up what all have, and fail if that is too little."""
    output: dict[str, str] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["seen"] = json.dumps(_probes.get_coverage())
        return
    whole = _probes.get_coverage()
    for seen in _of_workers:
        slipcover.merge_coverage(whole, json.loads(seen))
    rest = slipcover.Slipcover(
        branch=True, source=[str(PACKAGE)], omit=[*UNSEEN, *whole["files"]], exclude_also=NO_CODE
    )
    slipcover.merge_coverage(whole, rest.get_coverage())  # files that nobody imported count too
    session.config.stash[WHOLE] = whole
    if whole["summary"]["percent_covered"] < LEAST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the total, and what is missed if that is asked for."""
    whole = config.stash[WHOLE]
    if config.option.missing:
        slipcover.print_coverage(whole, skip_covered=True, missing_width=80)
    total = whole["summary"]
    lines = total["covered_lines"], total["covered_lines"] + total["missing_lines"]
    branches = total["covered_branches"], total["covered_branches"] + total["missing_branches"]
    terminalreporter.write_line(
        f"Coverage: {total['percent_covered']:.1f} % ({lines[0]} of {lines[1]} lines, {branches[0]} of {branches[1]} "
        f"branches); {LEAST:.0f} % is the least that passes"
    )
