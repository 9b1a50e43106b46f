"""What a node says is read as it may be meant: badly."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpm.engines.base import Fault
from fedpm.engines.flower import messages, replies

pytestmark = pytest.mark.flower

STEERING = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\rround 9/9  accuracy 1.000\n" * 100


@pytest.mark.parametrize("way", ["fault", "error", "hosted"])
def test_words_of_a_node_are_one_short_line_and_do_not_steer_the_terminal(way: str) -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 3, 1
    asked = messages.write_query(1, 60.0)
    said = {"clients": [STEERING]} if way == "hosted" else {"fault": "error", "reason": STEERING}
    content = RecordDict({messages.RECORD: ConfigRecord(said)})  # type: ignore[arg-type]
    reply = Message(Error(2, STEERING), reply_to=asked) if way == "error" else Message(content, reply_to=asked)
    read = replies.read_hosted(reply, 4) if way == "hosted" else replies.read_answer(reply)
    assert isinstance(read, Fault)
    assert read.reason.isprintable()
    assert "x1b]0;title" in read.reason
    assert len(read.reason) < 500
