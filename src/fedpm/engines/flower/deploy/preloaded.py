"""A process that has imported Flower, torch and fedpm, and forks: what a node starts for each message is there at once.

Flower starts ``flwr-clientapp`` by name for every message, and its app starts the client's work. Both take seconds to
import what they need. So a SuperNode is given a ``flwr-clientapp`` of a few lines that has this process fork instead.
"""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from fedpm.engines.flower.deploy.turns import await_turn
from fedpm.processes import end_with_parent
from fedpm.registry import load_parts

SOCKET = "FEDPM_PRELOADED"
"""The variable that names the socket on which forks are asked for."""
_COMMAND = "flwr-clientapp"
_NEEDED = [
    "flwr.supernode.cli.flwr_clientapp",
    "scipy.special",  # which some clients import when they need it: every fork would do so anew
    *(f"fedpm.engines.flower.deploy.{name}" for name in ("client", "identity", "settings", "worker")),
]
_STUB = """#!{python} -IS
import os, socket, sys
try:
    door = socket.socket(socket.AF_UNIX)
    door.connect({socket!r})
    socket.send_fds(door, [b"app " + chr(0).join(sys.argv[1:]).encode()], [0, 1, 2])
    taken = door.recv(1)
except OSError:
    taken = b""
if not taken:
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
"""
_MOST = 2**16
_MAX_PATH = 100
"""Characters of a socket's name: the system allows it 107."""


@contextmanager
def preloaded(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start such a process, and give the environment of a SuperNode that uses it."""
    command = Path(sys.executable).with_name(_COMMAND)
    with tempfile.TemporaryDirectory(prefix="fedpm-preloaded-") as folder:
        place = os.path.join(folder, "socket")
        if not hasattr(os, "fork") or not command.is_file() or len(place) > _MAX_PATH:
            yield environment
            return
        stub = Path(folder) / _COMMAND
        stub.write_text(_STUB.format(python=sys.executable, socket=place, command=str(command)))
        stub.chmod(0o700)
        path = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
        environment = {**environment, "PATH": path, SOCKET: place}
        process = subprocess.Popen(  # noqa: S603 - our own words
            [sys.executable, "-P", "-m", __name__, str(os.getpid()), place],
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,
        )
        try:
            yield environment
        finally:
            process.kill()  # and so all that it forked
            process.wait()


def work(job: dict[str, Any], seconds: float) -> tuple[int, bytes] | None:
    """Have a fork do a client's work, and return its exit code and output; None where there is none to ask.

    TimeoutError is raised after so many seconds, and the work is ended.
    """
    try:
        door = socket.socket(socket.AF_UNIX)
        door.connect(os.environ[SOCKET])
    except (AttributeError, KeyError, OSError):
        return None
    with door:
        door.settimeout(seconds)
        door.sendall(b"work" + pickle.dumps({**job, "environment": dict(os.environ)}))
        door.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: door.recv(_MOST), b""))
    return int(answer[:8] or b"1"), answer[8:]


def serve(door: socket.socket) -> None:
    """Fork for everyone who knocks, for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which leaves no zombies
    while True:
        connection, _ = door.accept()
        with connection:
            if not os.fork():
                door.close()
                _fork(_answer, connection)


def _fork(act: Callable[..., int], *arguments: Any) -> NoReturn:
    """Do something in a process that was just forked, and end it."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = act(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _answer(connection: socket.socket) -> int:
    """Be what is asked for: the app of a node, or the process that watches over a client's work."""
    end_with_parent(os.getppid())
    request, files, _, _ = socket.recv_fds(connection, _MOST, 3)
    if request[:4] == b"work":
        return _watch(connection, request[4:])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    sys.argv = [_COMMAND, *request[4:].decode().split("\0")]
    connection.sendall(b"1")  # from here on the stub need not run the command itself
    connection.close()
    with await_turn():
        flwr_clientapp()
    return 0


def _watch(connection: socket.socket, job: bytes) -> int:
    """Let a process of its own do the work, and end it if the one who asked goes away."""
    job += b"".join(iter(lambda: connection.recv(_MOST), b""))
    ours, theirs = socket.socketpair()
    me = os.getpid()
    if not (worker := os.fork()):
        ours.close()
        connection.close()
        _fork(_work, theirs, me, job)
    theirs.close()
    poll, output = select.poll(), b""
    poll.register(connection, select.POLLHUP)
    poll.register(ours, select.POLLIN)
    while connection.fileno() not in {file for file, _ in poll.poll()}:
        if not (piece := ours.recv(_MOST)):
            break
        output += piece
    else:
        os.killpg(worker, signal.SIGKILL)
        return 1
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with suppress(OSError):
        os.killpg(worker, signal.SIGKILL)  # what it left behind
    connection.sendall(b"%8d" % code + output)
    return 0


def _work(channel: socket.socket, parent: int, job: bytes) -> int:
    os.setpgid(0, 0)
    end_with_parent(parent)
    from fedpm.engines.flower.deploy.worker import answered

    given = pickle.loads(job)  # noqa: S301 - from an app of this node, by a socket of this user's
    os.environ.clear()
    os.environ.update(given.pop("environment"))
    channel.sendall(pickle.dumps(answered(**given)))
    return 0


def _practise() -> None:
    """Code a mask: numba, if installed, loads what it compiled, for which every fork would take half a second."""
    import numpy as np

    from fedpm.rng import Streams
    from fedpm.wire.coders.base import Context
    from fedpm.wire.coders.relative_entropy import RelativeEntropy
    from fedpm.wire.theta import Theta

    size = 64
    belief = Theta(np.ones(size, np.uint32), 2)
    RelativeEntropy().encode(np.full(size, 0.9, np.float32), Context(belief, Streams(0), (size,)), Streams(0))


def main() -> None:
    """Import what clients need, and serve on a socket of this user's alone, for as long as the parent lives."""
    end_with_parent(int(sys.argv[1]))
    door = socket.socket(socket.AF_UNIX)
    door.bind(sys.argv[2])
    door.listen()  # who knocks now waits: to import the same at the same time would take longer
    for name in _NEEDED:
        import_module(name)
    load_parts()
    _practise()
    serve(door)


if __name__ == "__main__":
    main()
