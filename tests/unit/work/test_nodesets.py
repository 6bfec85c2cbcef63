"""Which jobs are in the way of a resize, and which of them are ended."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.slurm import errors
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, RequeueJobs
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.transports.transport_errors import NotSupported
from airflow_provider_soperator.work.nodes import JobEnds, jobs_on


def test_jobs_are_told_by_the_nodes_that_they_have() -> None:
    def job(number: int, nodes: str, state: str = "RUNNING") -> Job:
        return Job(id=JobId(number), nodelist=nodes, state=JobState.parse(state))

    jobs = [
        job(1, "worker-[0-1]"),
        job(2, "worker-0"),
        job(3, ""),
        job(4, "worker-1", "PENDING"),
        job(5, "worker-cpu-1"),
    ]

    async def ask(request: Any) -> list[Job]:
        return jobs

    slurm: Any = SimpleNamespace(ask=ask)
    assert [one.id.job for one in asyncio.run(jobs_on(["worker-1", "worker-2"], slurm))] == [1]


def test_a_job_that_completes_is_not_put_back_into_the_queue() -> None:
    states = ("RUNNING", "COMPLETED+COMPLETING", "COMPLETING", "CONFIGURING")
    jobs = [
        Job(id=JobId(number), raw_id=number, nodelist="worker-0", state=JobState.parse(state))
        for number, state in enumerate(states, 1)
    ]
    requeued: list[JobId] = []

    async def ask(request: Any) -> Any:
        if isinstance(request, ListJobs):
            return jobs
        assert isinstance(request, RequeueJobs)
        requeued.extend(request.ids)

    slurm: Any = SimpleNamespace(ask=ask)
    asyncio.run(JobEnds().requeue(["worker-0"], slurm, logging.getLogger(__name__), may_cancel=True))
    assert requeued == [JobId(1), JobId(4)]


class Queue:
    """A Slurm with one job on a node, that answers to its requeue with an error, and notes what it is asked."""

    def __init__(self, job: str, error: errors.SlurmError | NotSupported | None = None) -> None:
        self.job = Job(id=JobId.parse(job), raw_id=7, nodelist="worker-0", state=JobState.parse("RUNNING"))
        self.error = error
        self.orders: list[Any] = []

    async def ask(self, request: Any) -> Any:
        if isinstance(request, ListJobs):
            return [self.job]
        self.orders.append(request)
        if isinstance(request, RequeueJobs) and self.error:
            raise self.error
        return None

    def end(self) -> None:
        slurm: Any = self
        asyncio.run(JobEnds().requeue(["worker-0"], slurm, logging.getLogger(__name__), may_cancel=True))


def test_a_job_is_cancelled_only_if_slurm_refuses_to_requeue_it() -> None:
    refused = Queue("7", errors.SlurmError("Requested operation is presently disabled"))
    refused.end()
    assert refused.orders[1:] == [CancelJobs(ids=(JobId(7),))]
    # It is in the queue already, put there by a preemption or by another task.
    waiting = Queue("7", errors.InvalidStateTransition("Job is pending execution"))
    waiting.end()
    assert len(waiting.orders) == 1
    # Slurm may have requeued it.
    silent = Queue("7", errors.ControllerUnreachable("Socket timed out on send/recv operation"))
    with pytest.raises(errors.ControllerUnreachable):
        silent.end()
    assert len(silent.orders) == 1
    # An old slurmrestd cannot be asked for it.
    old = Queue("7", NotSupported("slurmrestd v0.0.44 cannot requeue jobs", ""))
    with pytest.raises(NotSupported):
        old.end()
    assert len(old.orders) == 1


@pytest.mark.parametrize(("job", "requeued"), [("7+1", "7"), ("7_3", "7_3")])
def test_a_heterogeneous_job_is_requeued_as_a_whole(job: str, requeued: str) -> None:
    queue = Queue(job)
    queue.end()
    assert queue.orders == [RequeueJobs((JobId.parse(requeued),))]
