"""Jobs as slurmrestd tells of them."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, Request
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, Site, steps


def answered(request: Request[Any], *jobs: dict[str, Any]) -> Any:
    """What a request makes of one answer with these jobs."""
    calls = steps(request, Site(version=43))
    next(calls)
    try:
        calls.send(RestAnswer(200, {"jobs": jobs}))
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks more")


def test_a_job_of_the_queue_that_cannot_be_read_is_marked() -> None:
    said = {
        "job_id": 7, "array_job_id": None, "array_task_string": "", "het_job_id": None, "name": "fit",
        "user_name": "alice", "partition": "main", "job_state": ["RUNNING"],
    }  # fmt: skip
    [job] = answered(ListJobs(ids=(JobId(7),)), said)
    assert isinstance(job, Job)
    assert (job.id, job.name, job.user) == (JobId(7), "fit", "alice")
    assert "standard_output" in job.unreadable


def test_a_job_of_accounting_that_cannot_be_read_is_marked() -> None:
    said = {"job_id": 7, "name": "fit", "array": {"job_id": 0}, "het": {"job_id": 0}, "time": {}}
    [job] = answered(Accounting(ids=(JobId(7),)), said)
    assert isinstance(job, AccountingJob)
    assert (job.id, job.name) == (JobId(7), "fit")
    assert "state" in job.unreadable
