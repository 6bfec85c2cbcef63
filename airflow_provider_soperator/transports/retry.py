"""When a question is asked again: what can be repeated, how often, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.errors import TransportError

T = TypeVar("T")


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
    """What to ask after a failure: mostly the same. None if there is no hope in it, or harm."""
    if not isinstance(error, (SlurmError, TransportError)) or not error.retryable:
        return None
    return request.again() if error.unsettled else request
