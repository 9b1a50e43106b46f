"""Answers of the gate and of relays, and bodies that have to come in time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpcore
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

HOP_HEADERS = {b"connection", b"host", b"transfer-encoding", b"server", b"date", b"keep-alive", b"accept-encoding"}
"""Headers that belong to one of the two connections, not to the message."""


async def unless_gone(request: Request, asking: Coroutine[Any, Any, httpcore.Response]) -> httpcore.Response:
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


class Answer(StreamingResponse):
    """The other side's answer, handed on; its connection is free again in any case, also if nobody takes it."""

    def __init__(self, answer: httpcore.Response) -> None:
        headers = {name.decode(): value.decode() for name, value in answer.headers if name.lower() not in HOP_HEADERS}
        super().__init__(answer.aiter_stream(), answer.status, headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


def refuse(status: int, reason: str) -> Response:
    """Say why a call is not passed on."""
    return PlainTextResponse(reason, status, {"connection": "close"})  # a body that is still to come is not read


async def in_time(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Yield the pieces of a body, or raise TimeoutError if they do not all come in time."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        async with asyncio.timeout_at(end):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece
