"""A relay beside a SuperNode: it keeps connections to the gate open, and packs what crosses them.

A SuperNode of Flower's drops a connection after five seconds without a call, and repeats its key in every call. So it
talks to the relay, on 127.0.0.1 and under a certificate made for that, and the relay to the gate. It also keeps the
SuperNode and its apps from waiting for each other (``turns``).
"""

import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentError, ArgumentParser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from os import getpid
from pathlib import Path

import httpcore
from starlette.applications import Starlette
from starlette.requests import Request

from fedpm.engines.flower.deploy import certificates
from fedpm.engines.flower.deploy.gate import Passage, run
from fedpm.engines.flower.deploy.turns import SOCKET, Turns
from fedpm.processes import end_with_parent

_LARGEST = 10**10
"""Bytes of the largest call: the gate knows better."""


class Relay(Passage):
    """What a relay hands on, and when: see ``turns``."""

    held = frozenset({"pull-messages", "confirm-message-received"})

    def __init__(self, gate: str, authority: Path, place: str) -> None:
        super().__init__(gate, authority, _LARGEST)
        self._place, self._turns = place, Turns()

    @asynccontextmanager
    async def open(self, _: Starlette) -> AsyncIterator[None]:
        """Let apps ask for their turn."""
        with suppress(OSError, AttributeError):  # a long name; no such sockets
            await self._turns.open(self._place)
        yield

    async def answer(self, call: str, request: Request, question: bytes) -> httpcore.Response:
        """Pass a call on, and its answer in time."""
        if call == "confirm-message-received":
            self._turns.stored()
            answer = await self.ask(request, question)
            await self._turns.ended()
            return answer
        answer = await self.ask(request, question)
        if answer.status == 200 and (b"content-length", b"0") not in answer.headers:
            self._turns.fetching()
        return answer


@contextmanager
def relayed(arguments: list[str], environment: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Start a relay, and give the arguments of a SuperNode that uses it, and the environment of its apps.

    They are as they were where it has no use for one.
    """
    parser = ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--superlink", default="")
    parser.add_argument("--root-certificates", default="")
    try:
        given, others = parser.parse_known_args(arguments)
    except ArgumentError:  # of which Flower tells
        given, others = parser.parse_args([]), arguments
    authority = Path(given.root_certificates).expanduser()
    if not given.superlink or not authority.is_file():
        yield arguments, environment
        return
    with tempfile.TemporaryDirectory(prefix="fedpm-relay-") as folder, socket.create_server(("127.0.0.1", 0)) as door:
        keys, place = Path(folder) / "keys", f"{folder}/turns"
        certificates.make(keys, ["127.0.0.1"], nodes=0, days=3650)
        command = [sys.executable, "-P", "-m", __name__, str(getpid()), str(door.fileno()), given.superlink]
        process = subprocess.Popen(  # noqa: S603 - our own words
            [*command, str(authority.resolve()), str(keys), place],
            env=environment,
            pass_fds=[door.fileno()],
            process_group=0,
        )
        try:
            address = f"127.0.0.1:{door.getsockname()[1]}"
            ours = [*others, "--superlink", address, "--root-certificates", str(keys / "ca.pem")]
            yield ours, {**environment, SOCKET: place}
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Serve on a socket that was handed down, for as long as the parent lives."""
    parent, door, gate, authority, keys, place = sys.argv[1:]
    end_with_parent(int(parent))
    run(Relay(gate, Path(authority), place), socket.socket(fileno=int(door)), Path(keys))


if __name__ == "__main__":
    main()
