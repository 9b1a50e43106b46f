"""A relay beside a SuperNode: it keeps connections to the gate open, and packs what crosses them.

A SuperNode of Flower's drops a connection after five seconds without a call, and repeats its key in every call. So it
talks to the relay, on 127.0.0.1 and under a certificate made for that, and the relay to the gate.
"""

import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path

from fedpm.engines.flower.deploy import certificates
from fedpm.processes import end_with_parent

_LARGEST = 10**10
"""Bytes of the largest call: the gate knows better."""


@contextmanager
def relayed(arguments: list[str], environment: dict[str, str]) -> Iterator[list[str]]:
    """Start a relay, and give the arguments of a SuperNode that uses it: as they were, where it has no use for one."""
    parser = ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--superlink", default="")
    parser.add_argument("--root-certificates", default="")
    try:
        given, others = parser.parse_known_args(arguments)
    except ArgumentError:  # of which Flower tells
        given, others = parser.parse_args([]), arguments
    authority = Path(given.root_certificates).expanduser()
    if not given.superlink or not authority.is_file():
        yield arguments
        return
    with tempfile.TemporaryDirectory(prefix="fedpm-relay-") as folder, socket.create_server(("127.0.0.1", 0)) as door:
        keys = Path(folder) / "keys"
        certificates.make(keys, ["127.0.0.1"], nodes=0, days=3650)
        command = [sys.executable, "-P", "-m", __name__, str(getpid()), str(door.fileno()), given.superlink]
        process = subprocess.Popen(  # noqa: S603 - our own words
            [*command, str(authority.resolve()), str(keys)], env=environment, pass_fds=[door.fileno()], process_group=0
        )
        try:
            address = f"127.0.0.1:{door.getsockname()[1]}"
            yield [*others, "--superlink", address, "--root-certificates", str(keys / "ca.pem")]
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Serve on a socket that was handed down, for as long as the parent lives."""
    parent, door, gate, authority, keys = sys.argv[1:]
    end_with_parent(int(parent))
    from fedpm.engines.flower.deploy.gate import Passage, run

    run(Passage(gate, Path(authority), _LARGEST), socket.socket(fileno=int(door)), Path(keys))


if __name__ == "__main__":
    main()
