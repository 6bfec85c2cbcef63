"""Two ways to one cluster: one for Slurm, the other for its files, where the first does not lead to them."""

from __future__ import annotations

from typing import TypeVar

from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.protocol import Transport

T = TypeVar("T")


class SplitTransport:
    """Asks about files by the second transport, and all else by the first."""

    def __init__(self, slurm: Transport, files: Transport) -> None:
        self._slurm, self._files = slurm, files

    async def ask(self, request: Request[T]) -> T:
        return await (self._files if isinstance(request, FileRequest) else self._slurm).ask(request)

    async def close(self) -> None:
        try:
            await self._slurm.close()
        finally:
            await self._files.close()
