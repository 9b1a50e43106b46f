"""Every command on the README, the tutorials and the how-to pages runs, at small size."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from examples.fleet import free_port

from fedpm.study.definition import load, studies
from tests.command import Command, cli, fedpm
from tests.report.light import svg_alone

__all__ = ["cli"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("howto/*.md")), *sorted(DOCS.glob("tutorials/*"))]
FLEET = DOCS / "tutorials/fleet.md"
SMALL = ["rounds=1", "local.epochs=1", "model.name=conv4-slim", "data.train_examples=100", "data.test_examples=50"]
ALONE = ["--set", "workers=1"]  # what is as small as this trains faster than a process starts
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
FEW = {"run": SETTINGS, "privacy curve": ["--repetitions", "3"]}
"""What makes a command small; to resume takes the settings of the run."""
NET = """from fedpm.model.nets import build


def make():
    return build("conv4-slim", (1, 8, 8), 10)
"""
"""The module of a network of one's own that pages name."""
ELSEWHERE = [
    ("data", "get"),
    ("study", "run"),
    ("report", "runs/iid-mnist"),
    ("flower",),
    ("model", "inspect", "runs/app"),
]
"""What needs a network, hours, or machines: looked at below, and tried by tests/study and tests/engines/flower."""


def blocks(page: Path) -> list[str]:
    """Return the blocks of a page that are for a shell."""
    text = page.read_text()
    if page.suffix == ".py":
        text = re.sub(r"^# ?", "", text, flags=re.M)
    return re.findall(r"^```(?:console|bash)?\n(.*?)^```$", text, re.S | re.M)


def commands(page: Path) -> list[list[str]]:
    """Return the words of each call of fedpm on a page, without fedpm itself."""
    whole = [block.replace("\\\n", "") for block in blocks(page)]  # a line that ends in \ goes on in the next
    lines = [line for block in whole for line in block.splitlines() if line.startswith("fedpm ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_of_a_page_run(page: Path, cli: Command) -> None:
    called = commands(page)
    if not any("runs/try" in words and "--out" in words for words in called):  # the run that pages speak of
        called.insert(0, ["run", "--out", "runs/try"])
    rng = np.random.default_rng(0)  # the file that the tutorial on hospitals writes
    np.savez("places.npz", x=rng.random((600, 1, 8, 8), np.float32), y=np.arange(600) % 10, client=np.arange(600) % 3)
    np.savez("test.npz", x=rng.random((50, 1, 8, 8), np.float32), y=np.arange(50) % 10)  # and what a model is tried on
    Path("net.py").write_text(NET)
    for words in called:
        if any(tuple(words[: len(start)]) == start for start in ELSEWHERE):
            continue
        few = [] if "--resume" in words else FEW.get(words[0], FEW.get(" ".join(words[:2]), []))
        small = [*few, *(ALONE if words[0] == "run" else [])]
        # --engine flower: tests/engines/flower/test_simulation.py gives that very command; the rest of it is tried here
        quick = [re.sub("^flower$", "inprocess", re.sub(r"^rounds=\d+$", "rounds=2", word)) for word in words]
        with svg_alone():
            done = cli(*(word for word in quick if word != "--open"), *small)
        assert done.code == 0, f"fedpm {shlex.join(words)}: {done.stderr}"


def test_studies_and_rows_that_pages_name_are_there() -> None:
    called = [words for page in PAGES for words in commands(page)]
    assert {words[2] for words in called if words[:2] == ["study", "run"]} <= set(studies())
    (report,) = (words for words in called if words[:2] == ["report", "runs/iid-mnist"])
    rows = {label for run in load("iid-mnist", "small").runs(1) for label in run.labels.values()}
    assert set(report[3::2]) <= rows
    assert set(report[2::2]) == {"--only"}


def test_extras_and_targets_that_pages_name_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, *DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for named in re.findall(r"(?:fedpm|'\.)\[([\w,]+)\]", page.read_text()):
            assert set(named.split(",")) <= set(extras), f"{page.name} names {named}"
        for target in re.findall(r"(?:^|`)make (\w+)(?:`|\s+#)", page.read_text(), re.M):
            assert f"\n{target}:" in makefile, f"{page.name} names make {target}"


@pytest.mark.slow
@pytest.mark.flower
def test_the_fleet_of_the_tutorial_trains(tmp_path: Path) -> None:
    text = FLEET.read_text()
    port = free_port()
    for old, new in (("9092", port), ("9094", free_port()), ("9095", free_port())):
        assert f" {old}" in text or f":{old}" in text
        text = text.replace(old, str(new))
    text = text.replace("--set rounds=3\n", "--set rounds=3 " + shlex.join(SETTINGS) + "\n")
    (tmp_path / "fleet.md").write_text(text)
    _, server, registering, nodes, run, look = blocks(tmp_path / "fleet.md")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "FLWR_HOME": str(tmp_path / "home")}
    staying: list[subprocess.Popen[bytes]] = []

    def stay(block: str) -> None:
        with (tmp_path / f"{len(staying)}.log").open("wb") as log:
            words = ["bash", "-ec", block]
            started = subprocess.Popen(
                words, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        staying.append(started)

    def finish(block: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        stay(server)
        wait_for(port, staying[0])
        finish(registering)
        stay(nodes + "wait\n")
        finish(run)
    finally:
        for process in staying:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)
    [words] = [line.split()[1:] for line in look.splitlines()]
    assert fedpm(*words, cwd=tmp_path).code == 0


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on a port."""
    end = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
