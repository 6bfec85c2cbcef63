"""The diagnosis of a failed job, from what each way tells of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_soperator.client.diagnosis import diagnose
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests import JobDetail
from airflow_provider_soperator.slurm.states import JobState

SHOWN = "JobId=7 JobName=fit\n   UserId=root(0)\n   JobState=FAILED Reason=NonZeroExitCode\n   StdOut=/root/fit.out\n"
SAID = {"job_id": 7, "nodes": "worker-0", "job_resources": {"nodes": {}}, "failed_node": "", "standard_output": "fit.o"}


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (SHOWN, ["JobState=FAILED Reason=NonZeroExitCode", "StdOut=/root/fit.out"]),
        (json.dumps(SAID, indent=1), ['"nodes": "worker-0"', '"standard_output": "fit.o"']),
    ],
    ids=["scontrol", "slurmrestd"],
)
def test_what_slurmctld_knows_is_told_over_each_way(shown: str, told: list[str]) -> None:
    job = Job(id=JobId(7), raw_id=7, name="fit", user="root", state=JobState.parse("FAILED"))
    steps = diagnose(JobStatus(id=job.id, parts=(job,)))
    request: Any = next(steps)
    try:
        while True:
            request = steps.send(shown if isinstance(request, JobDetail) else ())
    except StopIteration as end:
        lines, _ = end.value
    assert lines[2 : lines.index("  Nodes")] == [f"    {line}" for line in told]
