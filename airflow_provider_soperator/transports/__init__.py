"""Transports to Slurm: one module each, one protocol for all, and two transports used as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.requests import Request

T = TypeVar("T")

#: Bytes of an answer that is read in a thread: that of a queue of 10,000 jobs takes long enough for others to wait.
_LARGE = 256 << 10


class Transport(Protocol):
    """Sends requests to one Slurm and waits for the answers; any number of tasks may do so at once.

    Slurm's answers are the request's own result type or a ``SlurmError``; failures on the way are a
    ``TransportError``. ``NotSupported`` is raised before anything is sent.
    """

    async def ask(self, request: Request[T]) -> T: ...

    async def close(self) -> None: ...


class SplitTransport:
    """Sends requests about files over the second transport, and all others over the first."""

    def __init__(self, slurm: Transport, files: Transport) -> None:
        self._slurm, self._files = slurm, files

    async def ask(self, request: Request[T]) -> T:
        return await (self._files if isinstance(request, FileRequest) else self._slurm).ask(request)

    async def close(self) -> None:
        try:
            await self._slurm.close()
        finally:
            await self._files.close()


async def read_apart(size: int, read: Callable[[], T]) -> T:
    """Read an answer of this many bytes: a large one in a thread, so that others need not wait."""
    if size > _LARGE:
        try:
            reading = asyncio.get_running_loop().run_in_executor(None, read)
        except RuntimeError:
            # A process that exits, or has too many, starts no further thread.
            return read()
        return await reading
    return read()
