"""The app of a node: it watches the process that does the work."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedpm import config as configs  # noqa: E402
from fedpm.engines.flower import messages  # noqa: E402
from fedpm.engines.flower.deploy import client, preloaded  # noqa: E402
from fedpm.engines.flower.deploy.folder import init  # noqa: E402
from fedpm.engines.flower.node import Request  # noqa: E402
from tests.engines.flower.test_folder import run_config  # noqa: E402
from tests.marked import marked  # noqa: E402

HOOKS = """
import os, time

def hang():
    time.sleep(100_000)

def end():
    os.kill(os.getpid(), 9)

def fail():
    raise ValueError("no luck")
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("client") / "app"
    init(folder, configs.load("quickstart", ["clients.total=2", "data.train_examples=100"]))
    (folder / "hooks.py").write_text(HOOKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("MARK", str(folder))
        yield folder
    assert not marked(folder, patience=5), "no process outlives its work"


def answer(app: Path, who: int, limit: float, hook: str = "", delay: float = 0.0) -> Mapping[str, Any]:
    """Return what a node that hosts client 1 of 2 answers to a broadcast that it cannot read."""
    run: Any = {**run_config(app), "app.network": f"hooks:{hook}" if hook else ""}
    node: Any = {"partition-id": 1, "num-partitions": 2}
    context = Context(run_id=3, node_id=4, node_config=node, state=RecordDict(), run_config=run)
    message = asked(who, limit)
    time.sleep(delay)
    return client.train(message, context).content[messages.RECORD]


def asked(who: int, limit: float) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 3, 1
    message = messages.write_request(Request(who, 1, limit, b"broadcast"), 4, 60)
    message.metadata.__dict__["_message_id"] = "1"
    return message


@pytest.fixture(scope="module")
def forks(app: Path) -> Iterator[dict[str, str]]:
    """The environment of a node with a process that has imported all, and forks."""
    with preloaded.preloaded(dict(os.environ)) as environment:
        place, end = Path(environment[preloaded.SOCKET]), time.monotonic() + 240
        while not place.exists() and time.monotonic() < end:
            time.sleep(0.1)
        yield environment


def test_what_goes_wrong_in_a_fork_becomes_the_same_answer(
    app: Path, forks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(preloaded.SOCKET, forks[preloaded.SOCKET])
    monkeypatch.setattr(sys, "executable", "none: nothing is started")
    test_what_goes_wrong_in_the_work_becomes_an_answer(app)


def test_the_command_of_a_node_is_a_fork(app: Path, forks: dict[str, str]) -> None:
    command = shutil.which("flwr-clientapp", path=forks["PATH"])
    assert command is not None
    assert Path(command).parent == Path(forks[preloaded.SOCKET]).parent
    done = subprocess.run([command, "--help"], capture_output=True, text=True, env=forks, timeout=120)
    assert "Run a Flower ClientApp" in done.stdout


def test_the_command_of_a_node_is_flowers_own_where_the_process_that_forks_dies(tmp_path: Path) -> None:
    place, command = tmp_path / "socket", tmp_path / "flwr-clientapp"
    command.write_text("#!/bin/sh\necho own $1\n")
    command.chmod(0o700)
    stub = preloaded._STUB.format(python=sys.executable, socket=str(place), command=str(command))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place))
        door.listen()
        with subprocess.Popen([sys.executable, "-c", stub, "word"], stdout=subprocess.PIPE, text=True) as asking:
            door.accept()[0].close()  # as if it were killed before it forked
            assert asking.communicate(timeout=120)[0] == "own word\n"


def test_what_goes_wrong_in_the_work_becomes_an_answer(app: Path) -> None:
    ways = {"hang": 3.0, "end": 120.0, "fail": 120.0, "": 120.0}
    with ThreadPoolExecutor() as pool:  # all at once: most of the time is spent on starting processes
        answers = pool.map(lambda way: answer(app, 1, ways[way], hook=way), ways)
        silent, crashed, failed, misread = ((values["fault"], values["reason"]) for values in answers)
    assert silent == ("silent", "its work was ended at the deadline, after 3 s")
    assert crashed == ("crashed", "the client's process ended with code -9")
    assert failed == ("error", "ValueError: no luck")
    assert misread[0] == "error"
    assert misread[1].startswith("message of 9 bytes")


def test_work_imports_nothing_from_the_folder_in_which_a_node_was_started(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('not the module that was meant')")
    monkeypatch.chdir(tmp_path)
    assert answer(app, 1, 120.0, hook="fail")["reason"] == "ValueError: no luck"


def test_work_whose_time_is_over_is_not_begun(app: Path) -> None:
    values = answer(app, 1, limit=0.01, delay=0.02)
    assert (values["fault"], "had passed" in values["reason"]) == ("silent", True)


def test_a_client_that_lives_elsewhere_is_not_answered_for(app: Path) -> None:
    values = answer(app, 0, limit=60)
    assert values["fault"] == "absent"
    assert "hosts clients [1] only" in values["reason"]


def test_the_app_of_a_node_starts_without_torch() -> None:
    code = "import sys, fedpm.engines.flower.deploy.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "a process starts for every message"
