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
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpcore
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

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
_HOP_HEADERS = {b"connection", b"host", b"transfer-encoding", b"server", b"date", b"keep-alive", b"accept-encoding"}
"""Headers that belong to one of the two connections, not to the message."""
_QUESTION = 1000
"""Bytes that a question for messages has at most."""
_UNREACHABLE = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Passage:
    """Hands on the calls of SuperNodes, piece by piece, and answers all others with 404.

    With ``hold``, a SuperNode that asks for messages is answered when there is one, or after so many seconds:
    it would wait for three seconds before it asks again, so the SuperLink is asked in its stead.
    """

    def __init__(self, server: str, authority: Path, largest: int, *, hold: float = 0.0) -> None:
        self._server, self._largest, self._hold = server, largest, hold
        self._under_way = self._waiting = 0
        self._pool = httpcore.AsyncConnectionPool(
            ssl.create_default_context(cafile=authority),
            max_connections=CONNECTIONS if hold else 2,  # of a node: one that waits, and one for all else
            keepalive_expiry=IDLE if hold else LINGER - IDLE,
            network_backend=None if hold else Packing(),
        )

    async def forward(self, request: Request) -> Response:
        """Answer as the SuperLink does, or say why the call is not passed on."""
        call, length = request.path_params["call"], request.headers.get("content-length", "")
        if not _CALL.fullmatch(call):
            return _refuse(404, "not a call of a SuperNode")
        if not length:  # which is a number, or h11 has refused it
            return _refuse(411, "a call should tell its length")
        if (size := int(length)) > self._largest:
            return _refuse(413, f"{size} bytes: the gate passes on at most {self._largest}; see its option --largest")
        if self._under_way + size > BODIES * self._largest:
            return _refuse(503, "too much is under way: try again")
        self._under_way += size
        body = _in_time(request.stream(), IDLE + size / SLOWEST)
        try:
            if call != "pull-messages" or size > _QUESTION:
                return _Answer(await self._ask(request, body))
            question = b"".join([piece async for piece in body])
            return _Answer(await _unless_gone(request, self._await_message(request, question)))
        except (TimeoutError, ClientDisconnect):
            return _refuse(408, f"the call should come at {SLOWEST} bytes per second or faster")
        except _UNREACHABLE as error:
            wrong = "certificate" in str(error).lower()  # which does not change: Flower gives up after a 500
            return _refuse(500 if wrong else 503, f"the SuperLink does not answer: {error}")
        finally:
            self._under_way -= size

    async def _ask(self, request: Request, body: AsyncIterator[bytes] | bytes) -> httpcore.Response:
        headers = [(name, value) for name, value in request.headers.raw if name not in _HOP_HEADERS]
        # else the answer might be packed, which costs more than it saves
        headers += [(b"host", self._server.encode()), (b"accept-encoding", b"identity")]
        url, patience = f"https://{self._server}{request.url.path}", 300.0 if self._hold else 40.0
        seconds = {"connect": IDLE, "read": patience, "write": patience, "pool": patience}
        asked = httpcore.Request("POST", url, headers=headers, content=body, extensions={"timeout": seconds})
        return await self._pool.handle_async_request(asked)

    async def _await_message(self, request: Request, question: bytes) -> httpcore.Response:
        """Ask until there is a message: often for a few nodes, and for many no more often than they would ask.

        At first most often: a message follows an answer soon, or not for long.
        """
        clock, pause = asyncio.get_running_loop().time, 0.1
        end = clock() + self._hold
        self._waiting += 1
        try:
            while True:
                answer = await self._ask(request, question)
                empty = answer.status == 200 and (b"content-length", b"0") in answer.headers
                if not empty or clock() >= end:
                    return answer
                await answer.aread()
                await answer.aclose()  # else the connection would never be free again
                await asyncio.sleep(min(3.0, max(pause, self._waiting / 50)))
                pause = min(1.2 * pause, 0.5)
        finally:
            self._waiting -= 1


async def _unless_gone(request: Request, asking: Coroutine[Any, Any, httpcore.Response]) -> httpcore.Response:
    """Break off if the one who asks goes away: a message that nobody waits for would be lost."""
    answer, gone = asyncio.ensure_future(asking), asyncio.ensure_future(_leaves(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        for task in (answer, gone):
            if not task.done():
                task.cancel()


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the end of a body may be told twice


class _Answer(StreamingResponse):
    """The other side's answer, handed on; its connection is free again in any case, also if nobody takes it."""

    def __init__(self, answer: httpcore.Response) -> None:
        headers = {name.decode(): value.decode() for name, value in answer.headers if name.lower() not in _HOP_HEADERS}
        super().__init__(answer.aiter_stream(), answer.status, headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


def _refuse(status: int, reason: str) -> Response:
    return PlainTextResponse(reason, status, {"connection": "close"})  # a body that is still to come is not read


async def _in_time(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Yield the pieces of a body, or raise TimeoutError if they do not all come in time."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        async with asyncio.timeout_at(end):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece


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
    with Door(host, int(port)) as door:
        run(Passage(superlink, keys / "ca.pem", largest, hold=HOLD), door, keys)


def run(passage: Passage, door: socket.socket, keys: Path) -> None:
    """Let a passage serve whoever comes to a door."""
    constants.SSL_HANDSHAKE_TIMEOUT = IDLE  # uvicorn has no setting for it
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/fleet/{call}", passage.forward, methods=["POST"])]),
        ssl_certfile=keys / "server.pem",
        ssl_keyfile=keys / "server.key",
        http=Impatient,
        ws="none",
        loop="asyncio",  # which calls Door.accept
        lifespan="off",
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
