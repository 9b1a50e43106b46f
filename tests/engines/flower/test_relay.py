"""A SuperNode's relay, the gate and a server in its place: what crosses between the two, and when it is answered."""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
httpx = pytest.importorskip("httpx")  # comes with Flower
pytestmark = pytest.mark.flower

from fedpm.engines.flower.deploy import certificates  # noqa: E402
from fedpm.engines.flower.deploy.packed import Packer  # noqa: E402
from fedpm.engines.flower.deploy.relay import relayed  # noqa: E402

GATE = """
import socket, sys
from pathlib import Path
from fedpm.engines.flower.deploy.gate import HOLD, Passage, run

keys = Path(sys.argv[3])
run(Passage(sys.argv[2], keys / "ca.pem", 10**8, hold=HOLD), socket.socket(fileno=int(sys.argv[1])), keys)
"""
KEYS = {"flwr-public-key": "k" * 288, "flwr-component-name": "supernode"}
"""Headers as Flower has them in every call."""


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 100))
def test_what_is_packed_is_unpacked_piece_by_piece(messages: list[bytes], most: int) -> None:
    one, other, heard = Packer(), Packer(), b""
    for message in messages:
        other.feed(one.pack(message))
        while piece := other.unpack(most):
            assert len(piece) <= most
            heard += piece
    assert heard == b"".join(messages)


@given(st.binary(min_size=1, max_size=200))
def test_what_is_not_packed_is_an_error_or_some_bytes(data: bytes) -> None:
    packer = Packer()
    packer.feed(data)
    with suppress(zlib.error):
        while packer.unpack():
            pass


@dataclass
class Chain:
    """The address of a relay, with the authority to trust, and the bytes that crossed between it and the gate."""

    address: str
    authority: str
    crossed: Counter[str] = field(default_factory=Counter)

    def client(self) -> Any:
        return httpx.Client(verify=ssl.create_default_context(cafile=self.authority), trust_env=False, timeout=60)


class Server(BaseHTTPRequestHandler):
    """Stands for the SuperLink: it has a message after the fourth question, and repeats what it is sent."""

    protocol_version = "HTTP/1.1"
    questions = connections = 0

    def setup(self) -> None:
        Server.connections += 1
        super().setup()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("pull-messages"):
            Server.questions += 1
            body = b"" if Server.questions < 4 else b"message"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def counting(target: int, crossed: Counter[str]) -> int:
    """Return a port that leads to another one, and counts what passes."""
    server = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(65536):
                crossed[way] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)  # a mere close would not be heard while the other thread reads

    def accept() -> None:
        while True:
            near, _ = server.accept()
            crossed["connections"] += 1
            far = socket.create_connection(("127.0.0.1", target))
            for pair in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    keys = tmp_path_factory.mktemp("relay") / "keys"
    certificates.make(keys, ["127.0.0.1"], 0, 1)
    superlink = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    superlink.socket = context.wrap_socket(superlink.socket, server_side=True)
    threading.Thread(target=superlink.serve_forever, daemon=True).start()
    door, crossed = socket.create_server(("127.0.0.1", 0)), Counter[str]()  # handed down: a free port may be taken
    command = [sys.executable, "-c", GATE, str(door.fileno()), f"127.0.0.1:{superlink.server_port}", str(keys)]
    outside = f"127.0.0.1:{counting(door.getsockname()[1], crossed)}"
    arguments = ["--superlink", outside, f"--root-certificates={keys}/ca.pem", "--host", "127.0.0.1"]
    with (
        door,
        subprocess.Popen(command, pass_fds=[door.fileno()]) as gate,
        relayed(arguments, dict(os.environ)) as (ours, _),
    ):
        assert ours[:2] == ["--host", "127.0.0.1"], "what is not about the connection stays"
        made = Chain(ours[ours.index("--superlink") + 1], ours[ours.index("--root-certificates") + 1], crossed)
        with made.client() as client:  # 503 until all are there
            while client.post(f"https://{made.address}/v1/fleet/x", content=b"").status_code != 200:
                assert gate.poll() is None
                time.sleep(0.2)
        yield made
        gate.terminate()
    superlink.shutdown()
    superlink.server_close()


@pytest.mark.slow
def test_what_calls_repeat_crosses_once(chain: Chain) -> None:
    with chain.client() as client:
        for number in range(30):
            if number == 10:
                before = Counter(chain.crossed)
            answer = client.post(f"https://{chain.address}/v1/fleet/x", content=b"12345", headers=KEYS)
            assert answer.content == b"12345"
    assert chain.crossed["connections"] <= 2
    assert chain.crossed["up"] - before["up"] < 20 * 200 < 20 * len(KEYS["flwr-public-key"])
    assert chain.crossed["down"] - before["down"] < 20 * 200


@pytest.mark.slow
def test_large_bodies_cross_unchanged(chain: Chain) -> None:
    body = os.urandom(3_000_000) + bytes(20_000_000)
    with chain.client() as client:
        assert client.post(f"https://{chain.address}/v1/fleet/x", content=body).content == body


@pytest.mark.slow
def test_a_node_that_asks_for_messages_is_answered_when_there_is_one(chain: Chain) -> None:
    before = Server.connections
    with chain.client() as client:
        assert client.post(f"https://{chain.address}/v1/fleet/pull-messages", content=b"?").content == b"message"
    assert Server.questions == 4
    assert Server.connections <= before + 1, "what is asked again takes the same connection"


@pytest.mark.slow
def test_a_node_that_no_longer_waits_is_not_asked_for(chain: Chain) -> None:
    Server.questions = -10_000
    with chain.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post(f"https://{chain.address}/v1/fleet/pull-messages", content=b"?", timeout=1)
    time.sleep(1)
    asked = Server.questions
    time.sleep(1)
    assert Server.questions == asked


@pytest.mark.parametrize("arguments", [["--insecure", "--superlink", "a:1"], ["--root-certificates", "nowhere"], []])
def test_a_node_without_tls_or_a_superlink_gets_no_relay(arguments: list[str]) -> None:
    with relayed(arguments, {}) as ours:
        assert ours == (arguments, {})


def test_a_relay_ends_with_its_node(tmp_path: Path) -> None:
    certificates.make(tmp_path / "keys", ["127.0.0.1"], 0, 1)
    arguments = ["--superlink", "127.0.0.1:9", "--root-certificates", str(tmp_path / "keys/ca.pem")]
    with relayed(arguments, dict(os.environ)) as (ours, _):
        host, _, port = ours[ours.index("--superlink") + 1].partition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=10)
