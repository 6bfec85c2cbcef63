"""Asking a cluster, or whatever else has a client, the same in each interval, for as long as a trigger runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from airflow_provider_soperator.clients.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.logger import Logger
from airflow_provider_soperator.hooks.settings import ConnectionMistake
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.hooks.stock import known
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.errors import TransportError

C = TypeVar("C")
T = TypeVar("T")


def rounds(
    slurm_conn_id: str,
    ask: Callable[[AsyncSlurmClient], Awaitable[T]],
    poll_interval: float,
    log: Logger,
    *,
    must_work: bool,
) -> AsyncGenerator[T, None]:
    """What ``ask`` comes to, in each interval in which the cluster can be asked; see ``rounds_with``."""
    return rounds_with(lambda: _cluster(slurm_conn_id), ask, poll_interval, log, must_work=must_work)


@asynccontextmanager
async def _cluster(slurm_conn_id: str) -> AsyncIterator[AsyncSlurmClient]:
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
            except (SlurmError, TransportError, ConnectionMistake) as error:
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
