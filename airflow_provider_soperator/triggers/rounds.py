"""Asking a cluster, or whatever else has a client, the same in each interval, for as long as a trigger runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.hooks.stock import known
from airflow_provider_soperator.kubernetes.objects import ObjectMissing
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import InvalidStateTransition, SlurmError
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError, is_forbidden

C = TypeVar("C")
T = TypeVar("T")

#: What a cluster, or the way to it, may answer with.
FAILURES = (SlurmError, TransportError, ConnectionMistake)


def is_final(error: Exception) -> bool:
    """Whether it stays wrong until somebody has changed the task, a connection or somebody's rights."""
    if isinstance(error, SlurmError):
        # A node may have gone on between the look and the order.
        return not error.retryable and not isinstance(error, InvalidStateTransition)
    return isinstance(error, (ConnectionMistake, NotSupported, ObjectMissing)) or is_forbidden(error)


def rounds(
    slurm_conn_id: str,
    ask: Callable[[AsyncSlurmClient], Awaitable[T]],
    poll_interval: float,
    log: Logger,
    *,
    must_work: bool,
) -> AsyncGenerator[T, None]:
    """What ``ask`` comes to, in each interval in which the cluster can be asked; see ``rounds_with``."""
    return rounds_with(lambda: slurm_client(slurm_conn_id), ask, poll_interval, log, must_work=must_work)


@asynccontextmanager
async def slurm_client(slurm_conn_id: str) -> AsyncIterator[AsyncSlurmClient]:
    """The client of a connection, which must be there."""
    with known(slurm_conn_id):
        async with SlurmHook(slurm_conn_id).async_client() as client:
            yield client


async def rounds_with(
    connect: Callable[[], AbstractAsyncContextManager[C]],
    ask: Callable[[C], Awaitable[T]],
    poll_interval: float,
    log: Logger,
    *,
    must_work: bool,
    whom: str = "The cluster",
) -> AsyncGenerator[T, None]:
    """What ``ask`` comes to, in each interval in which there is a client and an answer.

    ``must_work``: what fails the first time is a mistake, and raised to those who wait. Otherwise it is logged, as
    whatever fails later is: it may have been mended in the next interval.
    """
    worked, trouble = not must_work, ""
    async with AsyncExitStack() as opened:
        client: C | None = None
        while True:
            try:
                if client is None:
                    client = await opened.enter_async_context(connect())
                answer = await ask(client)
            except FAILURES as error:
                if not worked:
                    raise
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("%s cannot be asked at present: %s", whom, trouble)
                # Somebody may mend the connection meanwhile, and this may run for months.
                await opened.aclose()
                client = None
            else:
                worked, trouble = True, ""
                yield answer
            await asyncio.sleep(poll_interval)


async def stepped(
    connect: Callable[[], AbstractAsyncContextManager[C]],
    step: Callable[[C], Awaitable[T | None]],
    poll_interval: float,
    log: Logger,
) -> T:
    """A step in each round, until one has come to something. What cannot be mended by waiting is not asked again."""

    async def tried(client: C) -> T | Exception | None:
        try:
            return await step(client)
        except FAILURES as error:
            if not is_final(error):
                raise
            return error

    async for outcome in rounds_with(connect, tried, poll_interval, log, must_work=True):
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            return outcome
    raise AssertionError("rounds have no end")
