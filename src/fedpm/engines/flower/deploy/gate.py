"""A gate before the SuperLink that lets SuperNodes in and nobody else.

Flower serves SuperNodes, the submission of runs and its own processes on one port, and asks only SuperNodes for a key.
So let the SuperLink listen on 127.0.0.1, and the gate where SuperNodes reach it: it passes on their calls alone.
"""

import re
import ssl
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_CALL = re.compile(r"[a-z-]+")
_HOP_HEADERS = {"connection", "content-length", "host", "transfer-encoding", "server", "date", "keep-alive"}
"""Headers that belong to one of the two connections, not to the message."""


def passage(superlink: str, authority: Path) -> Starlette:
    """Return the app that hands on the calls of SuperNodes, and answers all others with 404."""
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}", verify=ssl.create_default_context(cafile=authority), timeout=300
    )

    async def forward(request: Request) -> Response:
        call = request.path_params["call"]
        if not _CALL.fullmatch(call):
            return PlainTextResponse("not a call of a SuperNode", 404)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_HEADERS}
        headers["accept-encoding"] = "identity"  # else the answer would be unpacked on the way
        try:
            answer = await client.post(f"/v1/fleet/{call}", content=await request.body(), headers=headers)
        except httpx.TransportError:
            return PlainTextResponse("the SuperLink does not answer", 503)
        headers = {name: value for name, value in answer.headers.items() if name not in _HOP_HEADERS}
        return Response(answer.content, answer.status_code, headers)

    return Starlette(routes=[Route("/v1/fleet/{call}", forward, methods=["POST"])])


def serve(listen: str, superlink: str, keys: Path) -> None:
    """Serve until told to stop; ``keys`` holds ca.pem, server.pem and server.key."""
    host, _, port = listen.rpartition(":")
    uvicorn.run(
        passage(superlink, keys / "ca.pem"),
        host=host,
        port=int(port),
        ssl_certfile=keys / "server.pem",
        ssl_keyfile=keys / "server.key",
        log_level="warning",
    )
