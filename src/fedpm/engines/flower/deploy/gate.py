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
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 500
"""Connections at a time, with those that have not yet said a word; more are closed at once."""
IDLE = 20.0
"""Seconds for the handshake of TLS, for the head of a request, and between two requests."""
SLOWEST = 20_000
"""Bytes per second at which a body arrives at least."""
BODIES = 4
"""Bodies of the largest size that may be under way together."""
_CALL = re.compile(r"[a-z-]+")
_HOP_HEADERS = {"connection", "host", "transfer-encoding", "server", "date", "keep-alive"}
"""Headers that belong to one of the two connections, not to the message."""


class Passage:
    """Hands on the calls of SuperNodes, piece by piece, and answers all others with 404."""

    def __init__(self, superlink: str, authority: Path, largest: int) -> None:
        self._client = httpx.AsyncClient(
            base_url=f"https://{superlink}",
            verify=ssl.create_default_context(cafile=authority),
            timeout=300,
            limits=httpx.Limits(max_connections=CONNECTIONS),
        )
        self._largest, self._under_way = largest, 0

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
        try:
            return await self._pass_on(request, call, size)
        except (TimeoutError, ClientDisconnect):
            return _refuse(408, f"the call should come at {SLOWEST} bytes per second or faster")
        except httpx.TransportError:
            return _refuse(503, "the SuperLink does not answer")
        finally:
            self._under_way -= size

    async def _pass_on(self, request: Request, call: str, size: int) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_HEADERS}
        headers["accept-encoding"] = "identity"  # else the answer would be unpacked on the way
        body = _in_time(request.stream(), IDLE + size / SLOWEST)
        asked = self._client.build_request("POST", f"/v1/fleet/{call}", content=body, headers=headers)
        answer = await self._client.send(asked, stream=True)
        headers = {name: value for name, value in answer.headers.items() if name not in _HOP_HEADERS}
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, headers, background=BackgroundTask(answer.aclose)
        )


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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch a new connection."""
        super().connection_made(transport)
        self.loop.call_later(IDLE, self._look, None)

    def _look(self, before: object) -> None:
        """Close the connection if no request has come since the last look, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
        else:
            self.loop.call_later(IDLE, self._look, self.cycle)


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
    passage = Passage(superlink, keys / "ca.pem", largest)
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
    )
    with Door(host, int(port)) as door:
        uvicorn.Server(config).run(sockets=[door])
