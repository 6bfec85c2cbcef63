"""The protocol of all ways to a Slurm, the retry of requests, and two ways used as one."""

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
    """Asks one Slurm and waits for the answer; any number of tasks may ask at once.

    Whatever Slurm says comes back as the request's own result type or as a ``SlurmError``; whatever happens on the
    way is a ``TransportError``. ``NotSupported`` is raised before anything is sent.
    """

    async def ask(self, request: Request[T]) -> T: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class RetryPolicy:
    """Pauses grow from ``first`` to ``longest`` seconds, and are spread so that many clients do not return together.

    >>> RetryPolicy(tries=1).pause(1) is None
    True
    """

    tries: int = 6
    first: float = 0.5
    longest: float = 20.0
    #: Seconds after the first try in which another may begin: what takes minutes to fail is not tried for an hour.
    within: float = 300.0

    def pause(self, attempt: int, spent: float = 0.0) -> float | None:
        """Seconds to wait after the ``attempt``-th failure, counted from 1; None: give up.

        ``spent``: seconds since the first try began.
        """
        if attempt >= self.tries or spent > self.within:
            return None
        return random.uniform(0.5, 1.0) * min(self.longest, self.first * 2.0 ** (attempt - 1))


def repeated(request: Request[T], error: BaseException) -> Request[T] | None:
    """The request to repeat after a failure: mostly the same. None if there is no hope in it, or harm."""
    if not isinstance(error, (SlurmError, TransportError)) or not error.retryable:
        return None
    return request.again() if error.unsettled else request


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
