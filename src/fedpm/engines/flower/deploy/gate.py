"""A gate before the SuperLink that lets SuperNodes in and nobody else.

Flower serves SuperNodes, the submission of runs and its own processes on one port, and asks only SuperNodes for a key.
So let the SuperLink listen on 127.0.0.1, and the gate where SuperNodes reach it: it passes on their calls alone. Who
calls is for the SuperLink to find out, so everything here is bounded: connections, idle time, bodies, and their sum.
"""

import asyncio
import re
import socket
import ssl
from asyncio import constants
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpcore
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpm.engines.flower.deploy import bells
from fedpm.engines.flower.deploy.answers import HOP_HEADERS, Answer, in_time, refuse, unless_gone
from fedpm.engines.flower.deploy.packed import PackedTransport, Packing, agreed, offer

CONNECTIONS = 500
"""Connections at a time, with those that have not yet said a word; more are closed at once."""
IDLE = 20.0
"""Seconds for the handshake of TLS, for the head of a request, and between two requests."""
LINGER = 90.0
"""Seconds between two requests of a relay: those of a node that works are far apart."""
HOLD = 10.0
"""Seconds after which a SuperNode that asks for messages is told that there are none; it waits for 30 at most."""
SLOWEST = 20_000
"""Bytes per second at which a body arrives at least."""
BODIES = 4
"""Bodies of the largest size that may be under way together."""
_CALL = re.compile(r"[a-z-]+")
_QUESTION = 1000
"""Bytes that a question for messages has at most."""
_NOTHING = {"pull-messages": b"0", "pull-object": b"2"}
"""How long the SuperLink's answer is if there is no message, or if the server has yet to send it an object."""
_UNREACHABLE = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Passage:
    """Hands on the calls of SuperNodes, piece by piece, and answers all others with 404.

    With ``hold``, a SuperNode that asks for messages is answered when there is one, or after so many seconds:
    it would wait for three seconds before it asks again, so the SuperLink is asked in its stead. ``bell`` tells when.
    """

    held = frozenset(_NOTHING)
    """Calls that may wait for their answer, which are short."""

    def __init__(
        self, server: str, authority: Path, largest: int, *, hold: float = 0.0, bell: bells.Bell | None = None
    ) -> None:
        self._server, self._largest, self._hold, self._bell = server, largest, hold, bell
        self._under_way = self._waiting = 0
        self._rung: dict[bytes, asyncio.Event] = {}
        self._pool = httpcore.AsyncConnectionPool(
            ssl.create_default_context(cafile=authority),
            max_connections=CONNECTIONS if hold else 2,  # of a node: one that waits, and one for all else
            keepalive_expiry=IDLE if hold else LINGER - IDLE,
            network_backend=None if hold else Packing(),
        )

    @asynccontextmanager
    async def open(self, _: Starlette) -> AsyncIterator[None]:
        """Listen for what helps to answer, for as long as there is anybody to answer."""
        if self._bell is not None and self._bell.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._bell.fileno(), self._wake, self._bell)
        yield

    async def forward(self, request: Request) -> Response:
        """Answer as the SuperLink does, or say why the call is not passed on."""
        call, length = request.path_params["call"], request.headers.get("content-length", "")
        if not _CALL.fullmatch(call):
            return refuse(404, "not a call of a SuperNode")
        if not length:  # which is a number, or h11 has refused it
            return refuse(411, "a call should tell its length")
        if (size := int(length)) > self._largest:
            return refuse(413, f"{size} bytes: the gate passes on at most {self._largest}; see its option --largest")
        if self._under_way + size > BODIES * self._largest:
            return refuse(503, "too much is under way: try again")
        self._under_way += size
        body = in_time(request.stream(), IDLE + size / SLOWEST)
        try:
            if call not in self.held or size > _QUESTION:
                return Answer(await self.ask(request, body))
            question = b"".join([piece async for piece in body])
            return Answer(await unless_gone(request, self.answer(call, request, question)))
        except (TimeoutError, ClientDisconnect):
            return refuse(408, f"the call should come at {SLOWEST} bytes per second or faster")
        except _UNREACHABLE as error:
            wrong = "certificate" in str(error).lower()  # which does not change: Flower gives up after a 500
            return refuse(500 if wrong else 503, f"the SuperLink does not answer: {error}")
        finally:
            self._under_way -= size

    async def ask(self, request: Request, body: AsyncIterator[bytes] | bytes) -> httpcore.Response:
        """Pass a call on."""
        headers = [(name, value) for name, value in request.headers.raw if name not in HOP_HEADERS]
        # else the answer might be packed, which costs more than it saves
        headers += [(b"host", self._server.encode()), (b"accept-encoding", b"identity")]
        url, patience = f"https://{self._server}{request.url.path}", 300.0 if self._hold else 40.0
        seconds = {"connect": IDLE, "read": patience, "write": patience, "pool": patience}
        asked = httpcore.Request("POST", url, headers=headers, content=body, extensions={"timeout": seconds})
        return await self._pool.handle_async_request(asked)

    async def answer(self, call: str, request: Request, question: bytes) -> httpcore.Response:
        """Ask until there is something: often for a few nodes, and for many no more often than they would ask.

        At first most often: a message follows an answer soon, or not for long; and an object follows its message, of
        which a node that comes too early would think for a second.
        """
        clock, pause = asyncio.get_running_loop().time, 0.1 if call == "pull-messages" else 0.02
        end, told = clock() + self._hold, call != "pull-messages"
        rung = self._rung[question] = asyncio.Event()
        self._waiting += 1
        try:
            while True:
                answer = await self.ask(request, question)
                if answer.status == 200 and not told:
                    bells.ring(bells.SERVER, question)
                    told = True
                empty = answer.status == 200 and (b"content-length", _NOTHING[call]) in answer.headers
                if not empty or clock() >= end:
                    return answer
                await answer.aread()
                await answer.aclose()  # else the connection would never be free again
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(3.0, max(pause, self._waiting / 50))):
                        await rung.wait()
                rung.clear()
                pause = min(1.2 * pause, 0.5)
        finally:
            self._waiting -= 1
            if self._rung.get(question) is rung:
                del self._rung[question]

    def _wake(self, bell: bells.Bell) -> None:
        for question in bell.heard().intersection(self._rung):
            self._rung[question].set()


class Impatient(H11Protocol):
    """HTTP for those who have something to say: uvicorn itself waits for a first request for ever."""

    _packed: PackedTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch a new connection."""
        if agreed(transport):
            self._packed = PackedTransport(transport, super().data_received)
        super().connection_made(self._packed or transport)  # type: ignore[arg-type]
        self.loop.call_later(IDLE, self._look, None)

    def data_received(self, data: bytes) -> None:
        """Take up what a node says."""
        if self._packed is None:
            super().data_received(data)
        else:
            self._packed.feed(data)

    def _look(self, before: object) -> None:
        """Close the connection if no request has come since the last look, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
        else:
            self.loop.call_later(IDLE if self._packed is None else LINGER, self._look, self.cycle)


class Door(socket.socket):
    """A listening socket that turns away whoever comes when the house is full, before any work is done for them."""

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(family, kind, protocol)
        self._inside: WeakSet[socket.socket] = WeakSet()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; asyncio goes on after a ConnectionAbortedError."""
        connection, address = super().accept()
        if sum(other.fileno() >= 0 for other in self._inside) >= CONNECTIONS:
            connection.close()
            raise ConnectionAbortedError
        self._inside.add(connection)
        return connection, address


def serve(listen: str, superlink: str, keys: Path, largest: int) -> None:
    """Serve until told to stop; ``keys`` holds ca.pem, server.pem and server.key, ``largest`` is in bytes."""
    host, _, port = listen.rpartition(":")
    with Door(host, int(port)) as door, closing(bells.Bell(bells.GATE)) as bell:
        run(Passage(superlink, keys / "ca.pem", largest, hold=HOLD, bell=bell), door, keys)


def run(passage: Passage, door: socket.socket, keys: Path) -> None:
    """Let a passage serve whoever comes to a door."""
    constants.SSL_HANDSHAKE_TIMEOUT = IDLE  # uvicorn has no setting for it
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/fleet/{call}", passage.forward, methods=["POST"])], lifespan=passage.open),
        ssl_certfile=keys / "server.pem",
        ssl_keyfile=keys / "server.key",
        http=Impatient,
        ws="none",
        loop="asyncio",  # which calls Door.accept
        lifespan="on",
        log_level="error",
        date_header=False,
        server_header=False,
        timeout_keep_alive=int(LINGER),  # Impatient is stricter
        timeout_graceful_shutdown=1,
    )
    config.load()
    if config.ssl is not None:
        offer(config.ssl)
    uvicorn.Server(config).run(sockets=[door])
