"""Asking a cluster the same in each interval, for as long as a trigger runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from airflow_provider_soperator.clients.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.logger import Logger
from airflow_provider_soperator.hooks.settings import ConnectionMistake
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.hooks.stock import known
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.errors import TransportError

T = TypeVar("T")


async def rounds(
    slurm_conn_id: str,
    ask: Callable[[AsyncSlurmClient], Awaitable[T]],
    poll_interval: float,
    log: Logger,
    *,
    must_work: bool,
) -> AsyncGenerator[T, None]:
    """What ``ask`` comes to, in each interval in which the cluster can be asked.

    ``must_work``: what fails the first time is a mistake, and raised to those who wait. Otherwise it is logged, as
    whatever fails later is: it may have been mended in the next interval.
    """
    worked, trouble = not must_work, ""
    async with AsyncExitStack() as opened:
        client: AsyncSlurmClient | None = None
        while True:
            try:
                if client is None:
                    with known(slurm_conn_id):
                        client = await opened.enter_async_context(SlurmHook(slurm_conn_id).async_client())
                answer = await ask(client)
            except (SlurmError, TransportError, ConnectionMistake) as error:
                if not worked:
                    raise
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("The cluster cannot be asked at present: %s", trouble)
                # Somebody may mend the connection meanwhile, and this may run for months.
                await opened.aclose()
                client = None
            else:
                worked, trouble = True, ""
                yield answer
            await asyncio.sleep(poll_interval)
