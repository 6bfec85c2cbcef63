"""How often a cluster is asked, and failures that are waited out."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.transport_errors import FAILURES

C = TypeVar("C")
T = TypeVar("T")

#: Minimum seconds between two polls.
SHORTEST = 1.0
#: Maximum seconds between two polls of a cluster that does not answer.
LONGEST_SILENCE = 120.0

#: The interval of polls as a part of the time that the job has been waited for.
_OF_AGE = 0.1
#: A slow answer costs slurmctld as much; the pause after it is this many times as long.
_OF_EFFORT = 10.0
#: RPCs of one squeue: it asks for the partitions and the federation, too.
_CALLS = 3
#: The part of a rate limit that polling may use; the rest is for other programs of the same user.
_OF_LIMIT = 0.5
#: The interval of polls as a part of MinJobAge, where a job that the queue has forgotten is not found elsewhere.
OF_MEMORY = 1 / 3
#: Seconds after which the log is told again of a failure that lasts.
TOLD_AGAIN = 1800.0


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


@dataclass
class Pace:
    """The seconds until the next poll.

    It depends on the age of the youngest waiter, and not on how many there are or how much changes.

    >>> pace = Pace()
    >>> pace.after_answer(youngest=5, longest=10), pace.after_answer(youngest=45, longest=10)
    (1.0, 4.5)
    """

    shortest: float = SHORTEST
    #: Maximum seconds between two polls, unless the rate limit asks for more.
    rarest: float = math.inf
    _failures: int = 0

    def respect(self, config: ClusterConfig) -> None:
        """Stay well below the cluster's rate limit and, without accounting, the time for which the queue remembers."""
        self.rarest = math.inf if config.has_accounting else config.min_job_age.total_seconds() * OF_MEMORY
        limit = config.rate_limit
        if limit and limit.refill:
            # Requests to accounting do not go to slurmctld.
            self.shortest = max(SHORTEST, _CALLS * limit.period.total_seconds() / limit.refill / _OF_LIMIT)
        else:
            self.shortest = SHORTEST

    def soonest(self, effort: float) -> float:
        """The minimum pause; ``effort`` is how long the last answer took."""
        return max(self.shortest, min(_OF_EFFORT * effort, self.rarest))

    def after_answer(self, *, youngest: float = 0.0, longest: float = 0.0, effort: float = 0.0) -> float:
        """The pause after an answer; ``youngest`` is the age of the youngest waiter, ``longest`` its poll interval."""
        self._failures = 0
        return max(self.soonest(effort), min(longest, _OF_AGE * youngest, self.rarest))

    def after_failure(self) -> float:
        """The pause after a failure: it grows, with jitter, as many clients may wait for the same cluster."""
        self._failures += 1
        longest = min(LONGEST_SILENCE, max(self.shortest, self.rarest), self.shortest * 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest


@dataclass
class Effort:
    """The seconds that answers take: the shorter of the last two.

    A single slow answer is no sign of a busy slurmctld: the connection was made, or a daemon hung. After a minute of
    that no job would be polled for ten, and Airflow would miss heartbeats before it learns of an end.

    >>> effort = Effort()
    >>> effort.of(60), effort.of(2), effort.of(3), effort.of(0.1)
    (0.0, 2, 2, 0.1)
    """

    _before: float = 0.0

    def of(self, seconds: float) -> float:
        """The effort after an answer that took these seconds."""
        before, self._before = self._before, seconds
        return min(before, seconds)


def first_of_kind(before: Exception | None, now: Exception) -> Exception:
    """The failure to report: its text may differ each time, but only a new type of failure is an update."""
    return before if before is not None and type(before) is type(now) else now


def may_pass(failure: Exception) -> TypeGuard[ClusterError]:
    """True if a failure of a request may be over later without any change, as it says of itself."""
    return isinstance(failure, ClusterError) and failure.passing


def repeated(request: Request[T], failure: Exception) -> Request[T] | None:
    """The request to repeat after a failure, mostly the same; None if a repeat cannot succeed or does harm."""
    if not may_pass(failure):
        return None
    return request.again() if failure.unsettled else request


class Patience:
    """The wait of a caller while a cluster is away: its log is told of each cause, and again from time to time.

    Only failures that may pass by themselves are waited out. Without a log there is no patience.
    """

    def __init__(self, log: Logger | None) -> None:
        self._log = log
        #: When the log is told of each kind of failure the next time.
        self._due: dict[type[Exception], float] = {}

    def bears(self, failure: Exception) -> bool:
        """True if the caller waits until the failure is over; its log is told then."""
        if self._log is None or not may_pass(failure):
            return False
        now, kind = time.monotonic(), type(failure)
        if now >= self._due.get(kind, -math.inf):
            self._due[kind] = now + TOLD_AGAIN
            self._log.warning("The cluster cannot be asked at present, this waits until it can: %s", failure)
        return True


async def polled(
    connect: Callable[[], AbstractAsyncContextManager[C]],
    ask: Callable[[C], Awaitable[T]],
    poll_interval: float,
    log: Logger,
    *,
    pause: float | None = None,
    is_borne: Callable[[Exception], bool] = lambda error: True,
) -> AsyncGenerator[T, None]:
    """The answers of ``ask``, one in each interval in which there is a client and an answer.

    After an answer the interval is ``pause``, if that is given. A failure is logged and tolerated, unless it comes
    before the first answer and is not ``is_borne``: later it may pass before the next interval.
    """
    has_answered, trouble = False, ""
    async with AsyncExitStack() as opened:
        client: C | None = None
        while True:
            try:
                if client is None:
                    client = await opened.enter_async_context(connect())
                answer = await ask(client)
            except FAILURES as error:
                if not has_answered and not is_borne(error):
                    raise
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("No answer at present, asking again: %s", trouble)
                # The connection may be corrected meanwhile, and this may run for months. A client that others share is
                # replaced only if its context is told of the failure.
                await opened.__aexit__(type(error), error, error.__traceback__)
                client = None
            else:
                has_answered, trouble = True, ""
                yield answer
            await asyncio.sleep(poll_interval if client is None or pause is None else pause)
