"""Work and watches, step by step: to a result, or to a failure that no later look can mend."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_soperator.client import pace
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import polled
from airflow_provider_soperator.errors import ConnectionMistake, LastingError
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import InvalidStateTransition, SlurmError
from airflow_provider_soperator.soperator.objects import ObjectMissing
from airflow_provider_soperator.transports.transport_errors import FAILURES as FAILURES
from airflow_provider_soperator.transports.transport_errors import NotSupported, is_forbidden
from airflow_provider_soperator.work.protocols import Look, Watch, Work, WorkRefused, failed, refused

C = TypeVar("C")


def is_final(error: Exception) -> bool:
    """True if a failure lasts until the task, a connection or a permission is changed."""
    if isinstance(error, SlurmError):
        # A node may have gone on between the look and the order.
        return not error.retryable and not isinstance(error, InvalidStateTransition)
    return isinstance(error, (ConnectionMistake, NotSupported, ObjectMissing)) or is_forbidden(error)


def may_pass(error: Exception) -> bool:
    """True if a failure may be over at the next look without any change: the cluster is unreachable, or busy."""
    return isinstance(error, InvalidStateTransition) or pace.may_pass(error)


def event_of(error: Exception) -> dict[str, Any]:
    """The event of work or of a watch that ends with an error."""
    # An unknown host ends no work that has begun, as its name may be back soon. But none can begin, at no other try.
    is_lasting = is_final(error) or isinstance(error, (WorkRefused, LastingError))
    return (refused if is_lasting else failed)(str(error))


@dataclass(kw_only=True)
class SlurmAccess:
    """What work and watches have in common that need a cluster's Slurm alone."""

    slurm_conn_id: str

    def open(self) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        return SlurmHook(self.slurm_conn_id).async_client()


async def completed(work: Work[C], log: Logger) -> dict[str, Any]:
    """The result of work, by a step in each interval."""

    async def step(client: C) -> dict[str, Any] | Exception | None:
        try:
            result = await work.step(client)
        except FAILURES as error:
            if not is_final(error):
                raise
            # No later step can succeed.
            return error
        work.has_begun = True
        return result

    async for outcome in polled(work.open, step, work.poll_interval, log, is_borne=may_pass):
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            return outcome
    raise AssertionError("polling has no end")


async def reached(watch: Watch[Any], log: Logger, since: float = 0.0) -> Any:
    """The result of a watch, once a look has reached it. None is older than ``since``, in seconds since 1970."""
    told: tuple[str, ...] = ()

    def look_now(client: Any) -> Awaitable[Look]:
        return watch.look(client, min(watch.poll_interval / 2, max(0.0, time.time() - since)))

    async for look in polled(watch.open, look_now, watch.poll_interval, log, pause=watch.pause, is_borne=may_pass):
        told = look.tell(log, told)
        if look.is_reached:
            return look.result
    raise AssertionError("polling has no end")
