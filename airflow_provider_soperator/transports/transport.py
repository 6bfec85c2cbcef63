"""The protocol of transports, the retry of requests, and two transports used as one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol, TypeVar

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.transport_errors import TransportError

T = TypeVar("T")


class Transport(Protocol):
    """Sends requests to one Slurm and waits for the answers; any number of tasks may do so at once.

    Slurm's answers are the request's own result type or a ``SlurmError``; failures on the way are a
    ``TransportError``. ``NotSupported`` is raised before anything is sent.
    """

    async def ask(self, request: Request[T]) -> T: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class RetryPolicy:
    """Tries, and pauses that grow from ``first`` to ``longest`` seconds, with jitter.

    >>> RetryPolicy(tries=1).pause(1) is None
    True
    """

    tries: int = 6
    first: float = 0.5
    longest: float = 20.0
    #: Seconds after the first try in which another may begin: a failure that takes minutes is not retried for an hour.
    within: float = 300.0

    def pause(self, attempt: int, spent: float = 0.0) -> float | None:
        """Seconds to wait after the ``attempt``-th failure, counted from 1; None to give up.

        ``spent``: seconds since the first try began.
        """
        if attempt >= self.tries or spent > self.within:
            return None
        return random.uniform(0.5, 1.0) * min(self.longest, self.first * 2.0 ** (attempt - 1))


def repeated(request: Request[T], error: BaseException) -> Request[T] | None:
    """The request to repeat after a failure, mostly the same; None if a repeat cannot succeed or does harm."""
    if not isinstance(error, (SlurmError, TransportError)) or not error.passing:
        return None
    return request.again() if error.unsettled else request


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
