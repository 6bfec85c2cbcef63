"""Event triggers against a running Slurm: what many of them cost, and what they do while it cannot be asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.client.pace import polled
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from airflow_provider_soperator.triggers.base import EventTrigger
from airflow_provider_soperator.triggers.events import SlurmJobFinishedTrigger
from airflow_provider_soperator.work.polling import may_pass
from tests.integration.clients import ClientUnderTest, questions
from tests.integration.cluster import Cluster
from tests.integration.conftest import ConnectClient
from tests.integration.connections import Connections
from tests.patience import PATIENCE

INTERVAL = 1.0


@pytest.fixture
def slurm(cluster: Cluster, connect_kind: ConnectClient) -> ClientUnderTest:
    return connect_kind("threads", cluster)


async def first_event(trigger: EventTrigger) -> TriggerEvent:
    events: AsyncIterator[TriggerEvent] = trigger.run()
    async with timeout(PATIENCE):
        return await anext(events)


def test_many_watchers_cost_what_one_costs(cluster: Cluster, slurm: ClientUnderTest, connections: Connections) -> None:
    conn_id = connections.login_node().slurm_conn_id
    triggers = [
        SlurmJobFinishedTrigger(name=f"watched-{number}", slurm_conn_id=conn_id, poll_interval=INTERVAL)
        for number in range(100)
    ]

    async def main() -> None:
        waiting = [asyncio.create_task(first_event(trigger)) for trigger in triggers]
        await asyncio.to_thread(cluster.wait, "some rounds", lambda: questions(slurm) - before > 3)
        job = await asyncio.to_thread(cluster.sbatch, "--job-name=watched-99")
        assert (await waiting[-1]).payload["job_id"] == job
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    before, started = questions(slurm), time.monotonic()
    asyncio.run(main())
    assert questions(slurm) - before <= 2 + (time.monotonic() - started) / (INTERVAL * 0.9)


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, *args: Any) -> None:
        self.lines.append(event % args)

    error = warning


def test_what_lasts_waits_for_its_connection_and_for_slurm(cluster: Cluster, connections: Connections) -> None:
    log = Log()
    soperator = cluster.access["airflow_connections"]["AIRFLOW_CONN_SOPERATOR_REST"]
    answers = polled(lambda: SlurmHook("to_come").async_client(), lambda client: client.ask(Ping()), 0.2, log)

    async def main() -> None:
        answer = asyncio.ensure_future(anext(answers))
        await asyncio.to_thread(cluster.wait, "it misses its connection", lambda: log.lines)
        connections.add("to_come", soperator)
        await answer
        cluster.fault("slurmrestd-down")
        answer = asyncio.ensure_future(anext(answers))
        await asyncio.to_thread(cluster.wait, "it misses slurmrestd", lambda: len(log.lines) > 1)
        await asyncio.to_thread(cluster.sandbox.up)
        await answer
        await answers.aclose()

    asyncio.run(main())
    assert "there is no connection to_come" in log.lines[0]
    # The same is not told in each round.
    assert len(set(log.lines)) == len(log.lines)


def test_somebody_who_waits_is_told_of_a_mistake_at_once(connections: Connections) -> None:
    log = Log()
    answers = polled(
        lambda: SlurmHook("not_to_come").async_client(), lambda client: client.ask(Ping()), 0.2, log, is_borne=may_pass
    )
    with pytest.raises(ConnectFailed, match="there is no connection not_to_come"):
        asyncio.run(anext(answers))
    assert log.lines == []
