"""The channels of an exec over SPDY/3.1, which is all that kubectl before 1.29 can speak."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from async_timeout import timeout

from sandbox.kube import errors
from sandbox.kube.execution import ERROR, RESIZE, STDERR, STDIN, STDOUT

PROTOCOL = "SPDY/3.1"
_STREAM_PROTOCOL = "v4.channel.k8s.io"
_CHANNELS = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 1
#: How long a client may take to open the streams it has announced.
_OPENING_SECONDS = 30.0
_CONTROL = 0x8003 << 16

# What both sides prime header compression with (SPDY/3, 2.6.10.1): words with their lengths, then a text.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language "
    "accept-ranges age allow authorization cache-control connection content-base content-encoding "
    "content-language content-length content-location content-md5 content-range content-type date etag "
    "expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since "
    "last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer "
    "retry-after server te trailer transfer-encoding upgrade user-agent vary via warning "
    "www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
_DICTIONARY = (
    b"".join(struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()) + _TEXT.encode()
)


class SpdyWire(asyncio.Protocol):
    """One upgraded connection: each channel is a stream that the client opens and names in a header."""

    def __init__(self, transport: asyncio.Transport, http: asyncio.BaseProtocol, channels: set[int]) -> None:
        self._transport, self._http = transport, http
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=_DICTIONARY)
        self._deflate = zlib.compressobj(zdict=_DICTIONARY)
        self._streams: dict[int, int] = {}
        self._channel_of: dict[int, int] = {}
        self._received: asyncio.Queue[tuple[int, bytes | None] | None] = asyncio.Queue()
        self._missing = set(channels)
        self._joined = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def accept(cls, request: web.Request, channels: set[int], headers: dict[str, str]) -> SpdyWire:
        """Take the connection over from HTTP, and wait for the client to open its streams."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        wire = cls(transport, transport.get_protocol(), channels | {ERROR})
        answer = {
            "Connection": "Upgrade",
            "Upgrade": PROTOCOL,
            "X-Stream-Protocol-Version": _STREAM_PROTOCOL,
            **headers,
        }
        lines = ["HTTP/1.1 101 Switching Protocols", *(f"{name}: {value}" for name, value in answer.items())]
        # From here on HTTP must see no byte more: a client sends its first frame on reading this answer.
        transport.set_protocol(wire)
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        transport.resume_reading()
        try:
            async with timeout(_OPENING_SECONDS):
                await wire._joined.wait()
        except asyncio.TimeoutError:
            transport.abort()
        if transport.is_closing():
            raise ConnectionResetError("the client is gone")
        return wire

    # What execution needs

    async def send(self, channel: int, data: bytes) -> None:
        await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._data(channel, data, 0)

    async def receive(self) -> tuple[int, bytes | None] | None:
        return await self._received.get()

    async def close(self) -> None:
        for channel in (STDOUT, STDERR, ERROR):
            self._data(channel, b"", _FIN)
        self._transport.close()

    def abort(self) -> None:
        # Old clients take even a broken connection for a success, as long as nothing says otherwise.
        status = errors.internal("the connection to the command was lost").status()
        self._data(ERROR, json.dumps(status).encode(), 0)
        self._transport.close()

    # What the connection tells

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            head, size = struct.unpack_from(">II", self._buffer)
            flags, length = size >> 24, size & 0xFFFFFF
            if len(self._buffer) < 8 + length:
                return
            payload = bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            if head & 0x80000000:
                self._control(head & 0xFFFF, flags, payload)
            else:
                self._stream_data(head, flags, payload)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._received.put_nowait(None)
        self._joined.set()
        self._writable.set()
        # HTTP still counts this connection as its own.
        self._http.connection_lost(exc)

    # Frames

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _SYN_STREAM:
            stream = struct.unpack_from(">I", payload)[0] & 0x7FFFFFFF
            headers = self._headers(self._inflate.decompress(payload[10:]))
            self._frame(_SYN_REPLY, struct.pack(">I", stream) + self._no_headers())
            channel = _CHANNELS.get(headers.get("streamtype", ""))
            if channel is not None:
                self._streams[stream], self._channel_of[channel] = channel, stream
                self._missing.discard(channel)
                if not self._missing:
                    self._joined.set()
            if flags & _FIN:
                self._stream_data(stream, flags, b"")
        elif kind == _PING:
            self._frame(_PING, payload)
        elif kind == _RST_STREAM:
            self._stream_data(struct.unpack_from(">I", payload)[0], _FIN, b"")
        elif kind == _GOAWAY:
            self._received.put_nowait(None)

    def _stream_data(self, stream: int, flags: int, payload: bytes) -> None:
        channel = self._streams.get(stream)
        if channel is None:
            return
        if payload:
            self._received.put_nowait((channel, payload))
        if flags & _FIN:
            self._received.put_nowait((channel, None))

    @staticmethod
    def _headers(block: bytes) -> dict[str, str]:
        texts, at = [], 4
        while at < len(block):
            (length,) = struct.unpack_from(">I", block, at)
            texts.append(block[at + 4 : at + 4 + length].decode())
            at += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=False))

    def _no_headers(self) -> bytes:
        return self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def _frame(self, kind: int, payload: bytes) -> None:
        self._transport.write(struct.pack(">II", _CONTROL | kind, len(payload)) + payload)

    def _data(self, channel: int, data: bytes, flags: int) -> None:
        stream = self._channel_of.get(channel)
        if stream is not None and not self._transport.is_closing():
            self._transport.write(struct.pack(">II", stream, flags << 24 | len(data)) + data)


class Hijacked(web.StreamResponse):
    """What a handler returns when the connection is no longer HTTP's: nothing is written for it."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: Any = b"") -> None:
        return None
