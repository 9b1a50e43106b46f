"""HTTP between a node's relay and the gate, deflated: what every call repeats, such as keys, crosses once.

Both ends agree on it in the handshake of TLS (ALPN); with one that does not know of it, plain HTTP is spoken.
"""

import asyncio
import ssl
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

PROTOCOL = "fedpm-deflate/1"
_WINDOW = 15
_PIECE = 2**16
"""Bytes that are inflated, or gathered to be deflated, at a time."""


def offer(context: ssl.SSLContext) -> None:
    """Let connections of a context be packed."""
    context.set_alpn_protocols([PROTOCOL, "http/1.1"])


def agreed(connection: Any) -> bool:
    """Return whether both ends of a connection, asyncio's or httpcore's, want it packed."""
    tls = connection.get_extra_info("ssl_object")
    return tls is not None and bool(tls.selected_alpn_protocol() == PROTOCOL)


class Packer:
    """Both directions of a packed connection."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(wbits=-_WINDOW)
        self._inflate = zlib.decompressobj(wbits=-_WINDOW)
        self._packed, self._full = b"", False

    def pack(self, data: bytes) -> bytes:
        """Return data as the other end can unpack them at once."""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def feed(self, packed: bytes) -> None:
        """Take up what came in."""
        self._packed += packed

    def unpack(self, most: int = _PIECE) -> bytes:
        """Return some of what came in; nothing if there is no more. Anything that is no packed data is a zlib.error."""
        if not self._packed and not self._full:
            return b""
        data = self._inflate.decompress(self._packed, most)
        self._packed, self._full = self._inflate.unconsumed_tail, len(data) == most
        if self._inflate.eof:
            raise zlib.error("the stream has an end")
        return data


class PackedTransport:
    """The gate's end: it gathers what is written in one go, and unpacks no more than its protocol can take."""

    def __init__(self, transport: asyncio.Transport, receive: Callable[[bytes], None]) -> None:
        self._transport, self._receive, self._packer = transport, receive, Packer()
        self._loop, self._paused, self._unsent = asyncio.get_running_loop(), False, bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def feed(self, packed: bytes) -> None:
        """Take up what came in, and hand on what it says."""
        self._packer.feed(packed)
        self._unpack()

    def _unpack(self) -> None:
        try:
            while not self._paused and not self._transport.is_closing() and (data := self._packer.unpack()):
                self._receive(data)
        except zlib.error:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Keep what comes in."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, though not at once: this may be called while data are handed on."""
        self._paused = False
        self._transport.resume_reading()
        self._loop.call_soon(self._unpack)

    def write(self, data: bytes) -> None:
        """Send data together with all that is written before the loop goes on."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(self._packer.pack(bytes(self._unsent)))
        self._unsent.clear()

    def close(self) -> None:
        """Close the connection after what is still to be sent."""
        self._flush()
        self._transport.close()


class Packing(httpcore.AsyncNetworkBackend):
    """Connections of a relay, packed where the other end agrees."""

    def __init__(self) -> None:
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect; what follows is the handshake of TLS."""
        return _Connected(await self._network.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._network.sleep(seconds)


class _Connected(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        offer(ssl_context)
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _Packed(stream) if agreed(stream) else stream

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Packed(httpcore.AsyncNetworkStream):
    """The relay's end: what is written is gathered until an answer is read."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream, self._packer, self._unsent = stream, Packer(), bytearray()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await self._flush(timeout)
        try:
            while not (data := self._packer.unpack(max_bytes)):
                if not (packed := await self._stream.read(max_bytes, timeout)):
                    return b""
                self._packer.feed(packed)
        except zlib.error as error:
            raise httpcore.ReadError(str(error)) from None
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer
        if len(self._unsent) >= _PIECE:
            await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> None:
        if self._unsent:
            packed = self._packer.pack(bytes(self._unsent))
            self._unsent.clear()
            await self._stream.write(packed, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
