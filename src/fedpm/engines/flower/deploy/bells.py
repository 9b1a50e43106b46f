"""Bells between the server of a run and the gate: neither has to look again and again for what is not there.

The server rings for a node when it has sent it a message, and the gate when the node asks for messages again: by then
it has sent its answers in full. A bell is a socket in FLWR_HOME of this user's alone, and what it is rung with is the
very question by which the node asks. Nothing but time depends on it: where nobody rings, both look by themselves.
"""

import os
import select
import socket
from contextlib import suppress
from pathlib import Path

SERVER, GATE = "server", "gate"
_LONGEST = 1000
"""Bytes of a question, at most."""


def _folder() -> Path:
    home = os.environ.get("FLWR_HOME")  # as Flower has it; to ask Flower would take a second
    return Path(home or Path.home() / ".flwr") / "fedpm-bells"


class Bell:
    """Hears who rings for this process; one that cannot be hung up, as where names are too long, hears nobody."""

    def __init__(self, kind: str) -> None:
        self._socket: socket.socket | None = None
        self._place = _folder() / f"{kind}-{os.getpid()}"
        with suppress(AttributeError, OSError):  # no such sockets; a name of more than 107 characters
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._place.unlink(missing_ok=True)  # of a process that had this number
                bell.bind(str(self._place))
            except OSError:
                bell.close()
                raise
            bell.setblocking(False)
            self._socket = bell

    def fileno(self) -> int:
        """Return the number to wait for, -1 if there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def heard(self) -> set[bytes]:
        """Return what was rung with since the last time."""
        words: set[bytes] = set()
        with suppress(BlockingIOError):
            while self._socket is not None:
                words.add(self._socket.recv(_LONGEST))
        return words

    def wait(self, seconds: float) -> set[bytes]:
        """Return what was rung with, as soon as there is something or after so many seconds."""
        select.select([self] if self._socket is not None else [], [], [], seconds)
        return self.heard()

    def close(self) -> None:
        """Take it down."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._place.unlink(missing_ok=True)


def ring(kind: str, question: bytes) -> None:
    """Ring all bells of a kind, and wait for nobody."""
    if not hasattr(socket, "AF_UNIX"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hand:
        hand.setblocking(False)
        for place in _folder().glob(f"{kind}-*"):
            try:
                hand.sendto(question, str(place))
            except ConnectionRefusedError:  # its process was killed
                place.unlink(missing_ok=True)
            except OSError:  # full, or just taken down
                pass
