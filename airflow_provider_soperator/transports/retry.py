"""When a question is asked again: what can be repeated, how often, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.errors import TransportError


@dataclass(frozen=True)
class RetryPolicy:
    """Pauses grow from ``first`` to ``longest`` seconds, and are spread so that many clients do not return together.

    >>> RetryPolicy(tries=1).pause(1, ConnectionError()) is None
    True
    """

    tries: int = 5
    first: float = 0.5
    longest: float = 20.0

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after the ``attempt``-th failure, counted from 1; None: give up."""
        if attempt >= self.tries or not isinstance(error, (SlurmError, TransportError)) or not error.retryable:
            return None
        return random.uniform(0.5, 1.0) * min(self.longest, self.first * 2.0 ** (attempt - 1))
