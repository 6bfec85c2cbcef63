"""The diagnosis of a failed job, from what each way tells of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_soperator.client.diagnosis import diagnose, failed_nodes
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import UnknownJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests import JobDetail
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.states import JobState, NodeState

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


@pytest.mark.parametrize(
    ("shown", "states", "lost"),
    [
        ("   NodeList=worker-[0-2]\n   BatchHost=worker-0 FailedNode=worker-1\n", "IDLE IDLE IDLE", ["worker-1"]),
        (json.dumps({"failed_node": "worker-1"}, indent=1), "IDLE IDLE IDLE", ["worker-1"]),
        (None, "IDLE+CLOUD+POWERED_DOWN DOWN+DRAIN IDLE+NOT_RESPONDING", ["worker-1", "worker-2"]),
        (None, "IDLE ALLOCATED IDLE", []),
    ],
    ids=["scontrol", "slurmrestd", "nodes", "unknown"],
)
def test_of_a_job_of_several_nodes_only_the_lost_one_has_failed(
    shown: str | None, states: str, lost: list[str]
) -> None:
    def ask(request: Any) -> Any:
        if not isinstance(request, JobDetail):
            said = zip(request.names, states.split(), strict=True)
            return tuple(Node(name=name, state=NodeState.parse(state)) for name, state in said)
        if shown is None:
            raise UnknownJob("Invalid job id specified")
        return shown

    job = Job(id=JobId(7), raw_id=7, nodelist="worker-[0-2]", state=JobState.parse("NODE_FAIL"))
    assert run_steps(failed_nodes(JobStatus(id=job.id, parts=(job,))), ask) == lost
