"""The gate takes no more memory, connections or time than it says, whoever calls: a real one, before a plain server."""

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpm[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

LARGEST = 40_000_000
SERVE = f"""
import sys
from pathlib import Path
from fedpm.engines.flower.deploy import gate
gate.IDLE, gate.CONNECTIONS, gate.SLOWEST = 2.0, 25, 10_000_000
gate.serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), {LARGEST})
"""
"""A gate that is in more of a hurry than one in use."""


class Counting(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers with the number of bytes that it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left = size = int(self.headers["content-length"])
        while left and (piece := self.rfile.read(min(left, 2**16))):
            left -= len(piece)
        answer = f"{self.path} {size - left}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass(frozen=True)
class Gate:
    process: int
    port: int
    trusted: ssl.SSLContext

    def connect(self) -> ssl.SSLSocket:
        return self.trusted.wrap_socket(self.knock(), server_hostname="127.0.0.1")

    def knock(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def call(self, *headers: str, body: bytes = b"", times: int = 1) -> str:
        """Return what the gate says to a call; the body is sent several times over, as far as it is read."""
        with self.connect() as connection:
            first = "POST /v1/fleet/push-object HTTP/1.1"
            connection.sendall("\r\n".join([first, "host: x", "connection: close", *headers, "", ""]).encode())
            for _ in range(times):
                connection.sendall(body)
            return b"".join(iter(lambda: connection.recv(2**16), b"")).decode()

    def memory(self) -> int:
        """Return the most memory that the gate ever had, in bytes."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process}/status").read_text())
        assert found is not None
        return 1024 * int(found[1])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    from fedpm.engines.flower.deploy.certificates import make

    keys = tmp_path_factory.mktemp("gate") / "keys"
    make(keys, ["127.0.0.1"], 0, 1)
    superlink = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.pem", keys / "server.key")
    superlink.socket = server.wrap_socket(superlink.socket, server_side=True)
    threading.Thread(target=superlink.serve_forever, daemon=True).start()
    port = free_port()
    command = [sys.executable, "-c", SERVE, f"127.0.0.1:{port}", f"127.0.0.1:{superlink.server_port}", str(keys)]
    with subprocess.Popen(command) as process:
        made = Gate(process.pid, port, ssl.create_default_context(cafile=keys / "ca.pem"))
        while True:
            try:
                made.connect().close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
                time.sleep(0.1)
        yield made
        process.terminate()
    superlink.shutdown()
    superlink.server_close()


def test_what_is_passed_on_takes_no_memory(gate: Gate) -> None:
    before = gate.memory()
    answer = gate.call(f"content-length: {LARGEST}", body=bytes(10**6), times=LARGEST // 10**6)
    assert answer.startswith("HTTP/1.1 200")
    assert answer.endswith(f"/v1/fleet/push-object {LARGEST}")
    assert gate.memory() - before < LARGEST / 4


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"content-length: {LARGEST + 1}", 413),
        ("content-length: " + "9" * 30, 400),
        ("transfer-encoding: chunked", 411),
        ("content-length: many", 400),
    ],
)
def test_a_call_that_is_too_large_or_tells_no_length_is_refused_before_its_body(
    gate: Gate, header: str, status: int
) -> None:
    assert gate.call(header).startswith(f"HTTP/1.1 {status}")


def test_a_body_that_does_not_come_in_time_is_given_up(gate: Gate) -> None:
    begun = time.monotonic()
    assert gate.call("content-length: 1000", body=b"a").startswith("HTTP/1.1 408")
    assert time.monotonic() - begun >= 2.0


def test_all_bodies_together_are_bounded(gate: Gate) -> None:
    waiting = [gate.connect() for _ in range(4)]
    try:
        for connection in waiting:
            connection.sendall(f"POST /v1/fleet/x HTTP/1.1\r\nhost: x\r\ncontent-length: {LARGEST}\r\n\r\n".encode())
        assert gate.call("content-length: 1", body=b"a").startswith("HTTP/1.1 503")
    finally:
        for connection in waiting:
            connection.close()
    while gate.call("content-length: 1", body=b"a").startswith("HTTP/1.1 503"):
        time.sleep(0.1)


@pytest.mark.parametrize("said", [None, b"", b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: "])
def test_who_says_nothing_is_not_waited_for(gate: Gate, said: bytes | None) -> None:
    connection = gate.knock() if said is None else gate.connect()
    with connection:
        connection.sendall(said or b"")
        assert connection.recv(1) == b"", "it should be closed"


def test_connections_are_bounded_and_those_inside_are_served(gate: Gate) -> None:
    with gate.connect() as inside:
        idle = [gate.knock() for _ in range(40)]
        inside.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert inside.recv(2**16).startswith(b"HTTP/1.1 200")
        held = sum("socket" in os.readlink(file) for file in Path(f"/proc/{gate.process}/fd").iterdir())
        assert held < 35, "25 connections, the door, and what asyncio needs"
    for connection in idle:
        connection.close()
