"""Turns of a node's SuperNode and of the app that it starts for a message, kept by the relay between it and the gate.

Either may come too early. An app that asks for a message of which parts have yet to come waits for a second, and a
SuperNode that finds no answer looks again after half a second. So an app begins when the message is there, and the
SuperNode hears that its receipt was confirmed, the last thing before it looks for the answer, when the app has ended.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

SOCKET = "FEDPM_TURN"
"""The variable that names the socket on which apps ask for their turn."""
_ARRIVAL = 2.0
"""Seconds in which an app comes; Flower's own never does."""
_WORK = 10.0
"""Seconds of an app for which a SuperNode waits: to one that takes longer, half a second is nothing."""
_FETCH = 60.0
"""Seconds for which an app waits for its message at most, before it sees for itself."""


class Turns:
    """Whose turn it is on a node."""

    def __init__(self) -> None:
        self._stored, self._begun, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._expected = False

    async def open(self, place: str) -> None:
        """Let apps come."""
        await asyncio.start_unix_server(self._app, place)

    def fetching(self) -> None:
        """Take note that the SuperNode fetches a message."""
        for event in (self._stored, self._begun, self._ended):
            event.clear()

    def stored(self) -> None:
        """Take note that it has the message."""
        self._stored.set()

    async def ended(self) -> None:
        """Wait until the message's app has ended; in vain only once, if none comes, and never for long."""
        if self._expected:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ARRIVAL):
                    await self._begun.wait()
                async with asyncio.timeout(_WORK):
                    await self._ended.wait()
            self._expected = self._begun.is_set()

    async def _app(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._expected = True
        self._begun.set()
        with suppress(OSError):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FETCH):
                    await self._stored.wait()
            writer.write(b"1")
            await reader.read()  # which ends with the app, however that ends
        self._ended.set()
        writer.close()


@contextmanager
def await_turn() -> Iterator[None]:
    """Wait in an app for its turn, which is over at the end of the context; without a relay it comes at once."""
    with ExitStack() as opened:
        with suppress(AttributeError, KeyError, OSError):
            door = opened.enter_context(socket.socket(socket.AF_UNIX))
            door.settimeout(_FETCH)
            door.connect(os.environ[SOCKET])
            door.recv(1)
        yield
