"""Server, gate, SuperNode and app tell each other when there is something, and go on where nobody tells."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
httpcore = pytest.importorskip("httpcore")  # comes with Flower
pytestmark = pytest.mark.flower

from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse  # noqa: E402
from flwr.proto.message_pb2 import PullObjectResponse  # noqa: E402
from flwr.proto.node_pb2 import Node  # noqa: E402

from fedpm.engines.flower.deploy import bells, certificates, gate, turns  # noqa: E402
from fedpm.engines.flower.deploy.server import NodesBell  # noqa: E402

FOREVER = 60.0
NO_REQUEST: Any = None


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


def question(node: int) -> bytes:
    return bytes(PullMessagesRequest(node=Node(node_id=node)).SerializeToString())


def test_a_bell_hears_those_of_its_kind_and_leaves_nothing_behind(home: Path) -> None:
    with closing(bells.Bell(bells.GATE)) as bell, closing(bells.Bell(bells.SERVER)) as other:
        for word in (b"1", b"2", b"1"):
            bells.ring(bells.GATE, word)
        assert bell.wait(FOREVER) == {b"1", b"2"}
        assert bell.heard() == other.heard() == set()
    assert not list((home / "fedpm-bells").iterdir())


def test_nobody_else_on_the_machine_can_ring(home: Path) -> None:
    with closing(bells.Bell(bells.GATE)):
        assert (home / "fedpm-bells").stat().st_mode & 0o077 == 0


def test_the_bell_of_a_killed_process_is_taken_down_by_who_rings_it(home: Path) -> None:
    code = "import os; from fedpm.engines.flower.deploy import bells; bells.Bell(bells.GATE); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    left = list((home / "fedpm-bells").iterdir())
    assert len(left) == 1
    with closing(bells.Bell(bells.GATE)) as bell:
        bells.ring(bells.GATE, b"1")
        assert bell.heard() == {b"1"}
        assert not left[0].exists()


def test_a_bell_that_nobody_hears_holds_up_nobody() -> None:
    with closing(bells.Bell(bells.GATE)) as bell:
        for number in range(5000):  # more than the system keeps
            bells.ring(bells.GATE, b"%d" % number)
        assert b"0" in bell.heard()


def test_where_no_bell_can_be_hung_up_nothing_is_heard(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(home / ("long" * 30)))
    with closing(bells.Bell(bells.GATE)) as bell:
        bells.ring(bells.GATE, b"1")
        assert (bell.fileno(), bell.wait(0.01)) == (-1, set())


def test_the_server_hears_of_nodes_that_it_sent_something() -> None:
    with closing(NodesBell()) as bell, closing(bells.Bell(bells.GATE)) as of_gate:
        bell.ring(7)
        assert of_gate.heard() == {question(7)}
        for node in (8, 7):  # the first asks, as nodes do, and was sent nothing
            bells.ring(bells.SERVER, question(node))
        assert bell.wait(FOREVER) == {7}
        assert bell.wait(0.01) == set()


class Asking(gate.Passage):
    """A gate whose SuperLink gives scripted answers; ``asked`` counts them."""

    def __init__(self, keys: Path, answers: list[bytes], bell: bells.Bell | None = None) -> None:
        super().__init__("127.0.0.1:9", keys / "ca.pem", 1000, hold=FOREVER, bell=bell)
        self.answers, self.asked = iter(answers), 0

    async def ask(self, request: Any, body: Any) -> Any:
        self.asked += 1
        content = next(self.answers)
        return httpcore.Response(200, headers=[("content-length", str(len(content)))], content=content)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    certificates.make(tmp_path / "keys", ["127.0.0.1"], 0, 1)
    return tmp_path / "keys"


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again by himself: who is not told waits for ever."""
    timeout = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: timeout(None))


@pytest.mark.usefixtures("endless")
def test_a_node_that_waits_is_answered_when_the_server_rings(keys: Path) -> None:
    async def ask() -> bytes:
        with closing(bells.Bell(bells.GATE)) as bell, closing(bells.Bell(bells.SERVER)) as server:
            passage = Asking(keys, [b"", b"message"], bell)
            async with passage.open(NO_REQUEST):
                asking = asyncio.ensure_future(passage.answer("pull-messages", NO_REQUEST, question(7)))
                while server.heard() != {question(7)}:  # who asks has sent all answers
                    await asyncio.sleep(0.001)
                bells.ring(bells.GATE, question(8))
                bells.ring(bells.GATE, question(7))
                answer = await asking
            assert passage.asked == 2
            return bytes(await answer.aread())

    assert asyncio.run(ask()) == b"message"


def test_an_object_that_has_yet_to_come_is_asked_for_again(keys: Path) -> None:
    yet_to_come = bytes(PullObjectResponse(object_found=True).SerializeToString())
    there = bytes(PullObjectResponse(object_found=True, object_available=True).SerializeToString())

    async def ask() -> bytes:
        answer = await Asking(keys, [yet_to_come, yet_to_come, there]).answer("pull-object", NO_REQUEST, b"object")
        return bytes(await answer.aread())

    assert asyncio.run(ask()) == there


def test_what_stands_for_nothing_is_as_long_as_the_gate_takes_it_to_be() -> None:
    sizes = {
        "pull-messages": PullMessagesResponse().ByteSize(),
        "pull-object": PullObjectResponse(object_found=True, object_available=False).ByteSize(),
    }
    assert {call: b"%d" % size for call, size in sizes.items()} == gate._NOTHING


async def app_at(place: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(place)


@pytest.mark.usefixtures("endless")
def test_an_app_begins_when_its_message_is_there_and_the_node_goes_on_when_it_has_ended(tmp_path: Path) -> None:
    async def message(turn: turns.Turns) -> list[str]:
        happened = []
        turn.fetching()
        reader, writer = await app_at(tmp_path / "turns")
        begins = asyncio.ensure_future(reader.readexactly(1))
        await asyncio.wait({begins}, timeout=0.05)
        happened.append("waits" if not begins.done() else "too early")
        turn.stored()
        await begins
        ends = asyncio.ensure_future(turn.ended())
        await asyncio.wait({ends}, timeout=0.05)
        happened.append("works" if not ends.done() else "too early")
        writer.close()
        await ends
        return happened

    async def messages() -> list[str]:
        turn = turns.Turns()
        await turn.open(str(tmp_path / "turns"))
        return await message(turn) + await message(turn)

    assert asyncio.run(messages()) == 2 * ["waits", "works"]


@pytest.mark.usefixtures("endless")
def test_a_node_whose_apps_ask_for_no_turn_does_not_wait_for_them() -> None:
    async def message() -> None:
        turn = turns.Turns()
        turn.fetching()
        turn.stored()
        await turn.ended()

    asyncio.run(message())


def test_an_app_that_stays_away_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_ARRIVAL", 0.01)

    async def messages() -> list[bool]:
        turn, expected = turns.Turns(), []
        await turn.open(str(tmp_path / "turns"))
        turn.fetching()
        turn.stored()
        reader, writer = await app_at(tmp_path / "turns")
        await reader.readexactly(1)
        writer.close()
        for _ in range(2):
            await turn.ended()
            expected.append(turn._expected)
            turn.fetching()
        return expected

    assert asyncio.run(messages()) == [True, False]


def test_an_app_without_a_relay_has_its_turn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.SOCKET, raising=False)
    with turns.await_turn():
        monkeypatch.setenv(turns.SOCKET, str(tmp_path / "nowhere"))
    with turns.await_turn():
        pass


def test_an_apps_turn_is_over_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(turns.SOCKET, str(tmp_path / "turns"))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(os.environ[turns.SOCKET])
        door.listen()
        code = "from fedpm.engines.flower.deploy.turns import await_turn\nwith await_turn(): print('mine', flush=True)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as app:
            waiting, _ = door.accept()
            with waiting:
                waiting.sendall(b"1")
                assert app.communicate()[0] == b"mine\n"
                assert waiting.recv(1) == b""
