"""The app of a node: it watches the process that does the work."""

import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedpm import config as configs  # noqa: E402
from fedpm.engines.flower import records, replies  # noqa: E402
from fedpm.engines.flower.deploy import client  # noqa: E402
from fedpm.engines.flower.deploy.folder import init  # noqa: E402
from fedpm.engines.flower.work import Request  # noqa: E402
from tests.engines.flower.conftest import processes  # noqa: E402
from tests.engines.flower.test_folder import run_config  # noqa: E402

HOOKS = """
import os, time

def hang():
    time.sleep(100_000)

def end():
    os.kill(os.getpid(), 9)

def fail():
    raise ValueError("no luck")
"""


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    init(tmp_path / "app", configs.load("quickstart", ["clients.total=2", "data.train_examples=100"]))
    (tmp_path / "app/hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    monkeypatch.setenv("MARK", str(tmp_path))
    node = {"partition-id": 1, "num-partitions": 2}
    run = {**run_config(tmp_path / "app")}
    return Context(run_id=3, node_id=4, node_config=node, state=RecordDict(), run_config=run)


def asked(who: int, limit: float) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 3, 1
    message = replies.ask(Request(who, 1, limit, b"broadcast"), 4, 60)
    message.metadata.__dict__["_message_id"] = "1"
    return message


@pytest.mark.parametrize(
    ("hook", "limit", "fault", "words"),
    [
        ("hang", 4.0, "silent", "ended at the deadline"),
        ("end", 60.0, "crashed", "ended with code -9"),
        ("fail", 60.0, "error", "ValueError: no luck"),
        ("", 60.0, "error", "WireError: message of 9 bytes|shorter than"),
    ],
)
def test_what_goes_wrong_in_the_work_becomes_an_answer(
    context: Context, hook: str, limit: float, fault: str, words: str, tmp_path: Path
) -> None:
    context.run_config["app.network"] = f"hooks:{hook}" if hook else ""
    values = client.train(asked(1, limit), context).content[records.RECORD]
    assert values["fault"] == fault
    assert any(word in values["reason"] for word in words.split("|"))
    assert not [
        found for found in processes(f"MARK={tmp_path}", patience=5) if "fedpm.engines.flower.deploy.worker" in found
    ]


def test_work_whose_time_is_over_is_not_begun(context: Context) -> None:
    message = asked(1, 0.01)
    time.sleep(0.02)
    values = client.train(message, context).content[records.RECORD]
    assert (values["fault"], "had passed" in values["reason"]) == ("silent", True)


def test_a_client_that_lives_elsewhere_is_not_answered_for(context: Context) -> None:
    values = client.train(asked(0, 60), context).content[records.RECORD]
    assert values["fault"] == "absent"
    assert "hosts clients [1] only" in values["reason"]
