"""The channels of an exec over a websocket, as all recent clients carry them."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from sandbox.kube.execution import STDOUT

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
_CLOSE = 255


class WebSocketWire:
    """Frames that begin with a byte for the channel; in v5 channel 255 ends the one it names."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._socket, self._transport = socket, transport

    @classmethod
    async def accept(cls, request: web.Request) -> WebSocketWire:
        socket = web.WebSocketResponse(protocols=(V5, V4), max_msg_size=0, compress=False)
        await socket.prepare(request)
        wire = cls(socket, request.transport)
        # The API server begins with an empty frame, by which clients see that the command is joined.
        await wire.send(STDOUT, b"")
        return wire

    @property
    def response(self) -> web.WebSocketResponse:
        return self._socket

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)

    async def receive(self) -> tuple[int, bytes | None] | None:
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.BINARY:
                frame = bytes(message.data)
            elif message.type is WSMsgType.TEXT:
                frame = message.data.encode()
            else:
                return None
            if not frame:
                continue
            if frame[0] == _CLOSE and self._socket.ws_protocol == V5 and len(frame) == 2:
                return frame[1], None
            return frame[0], frame[1:]

    async def close(self) -> None:
        await self._socket.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
