"""What another try changes in a job, by what the job of the earlier one had."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.client.diagnosis import failed_nodes
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_failures import retry
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.states import JobState


def ended(*states: str, **fields: Any) -> JobStatus:
    parts = (
        Job(id=JobId(7, element=index), state=JobState.parse(state), nodelist=f"worker-{index}", **fields)
        for index, state in enumerate(states)
    )
    return JobStatus(id=JobId(7), parts=tuple(parts))


OUT_OF_MEMORY = ended("OUT_OF_MEMORY", tres="cpu=4,mem=20480M,node=2", time_limit=timedelta(hours=1))


def changed(changes: dict[str, Any], end: JobStatus = OUT_OF_MEMORY, **fields: Any) -> dict[str, Any]:
    # A part of one node needs no request.
    failed = run_steps(failed_nodes(end), lambda request: ())
    return retry(**changes).changed(BatchJob(**{"command": "true", **fields}), end, failed)


@pytest.mark.parametrize(
    ("fields", "new"),
    [
        ({"mem": "8G"}, {"mem": 16384}),
        ({"mem": "8G", "script": "#!/bin/sh\n#SBATCH --mem=1G\n", "command": None}, {"mem": 16384}),
        ({"script": "#!/bin/sh\n#SBATCH --mem-per-cpu=1G\n", "command": None}, {"mem_per_cpu": 2048}),
        ({"extra_args": ["--mem=3G"]}, {"mem": 6144}),
        ({"mem_per_gpu": 100}, {"mem_per_gpu": 200}),
        # The default of the partition: what Slurm gave it, on each node.
        ({}, {"mem": 20480}),
    ],
)
def test_memory_grows_from_what_the_job_had(fields: dict[str, Any], new: dict[str, Any]) -> None:
    assert changed({"mem": "x2"}, **fields) == new


@pytest.mark.parametrize(
    ("fields", "new"),
    [
        ({"time_limit": "2:00:00"}, {"time_limit": timedelta(hours=3)}),
        ({"time_limit": 10}, {"time_limit": timedelta(minutes=15)}),
        ({"time_limit": "unlimited"}, {}),
        ({}, {"time_limit": timedelta(minutes=90)}),
    ],
)
def test_so_does_the_time_limit(fields: dict[str, Any], new: dict[str, Any]) -> None:
    assert changed({"time_limit": "x1.5"}, **fields) == new


def test_what_is_unknown_does_not_grow() -> None:
    assert changed({"mem": "x2", "time_limit": "x2"}, ended("FAILED")) == {}


@pytest.mark.parametrize("before", [None, "worker-7", ["worker-7"]])
def test_the_nodes_of_failed_parts_are_left_out(before: Any) -> None:
    new = changed({"exclude_nodes": True}, ended("FAILED", "COMPLETED", "NODE_FAIL"), exclude=before)
    assert new == {"exclude": "worker-[0,2,7]" if before else "worker-[0,2]"}
    # A job that never had nodes.
    none = JobStatus(id=JobId(7), parts=(Job(id=JobId(7), state=JobState.parse("BOOT_FAIL")),))
    assert changed({"exclude_nodes": True}, none) == {}


def test_other_options_are_replaced() -> None:
    assert changed({"partition": "large", "mem": "64G"}, mem="8G") == {"partition": "large", "mem": "64G"}


@pytest.mark.parametrize(
    ("changes", "fields", "new"),
    [
        ({"mem": "64G"}, {"mem_per_cpu": "4G"}, {"mem": "64G", "mem_per_cpu": None}),
        ({"mem": 0}, {"mem_per_gpu": "4G"}, {"mem": 0, "mem_per_gpu": None}),
        ({"cpus_per_gpu": 8}, {"cpus_per_task": 2}, {"cpus_per_gpu": 8, "cpus_per_task": None}),
        ({"exclusive": True}, {"oversubscribe": True}, {"exclusive": True, "oversubscribe": None}),
        ({"exclusive": False}, {"oversubscribe": True}, {"exclusive": False}),
    ],
)
def test_so_are_those_that_exclude_them(changes: dict[str, Any], fields: dict[str, Any], new: dict[str, Any]) -> None:
    assert changed(changes, **fields) == new


def test_what_is_changed_twice_has_grown_twice() -> None:
    job = BatchJob(command="true", mem="1G", exclude="worker-5")
    twice = retry(mem="x2", exclude_nodes=True)
    for _ in range(2):
        job = job.replace(**twice.changed(job, OUT_OF_MEMORY, ["worker-0"]))
    assert (job.mem, job.exclude) == (4096, "worker-[0,5]")
    job.check()


def test_a_heterogeneous_job_cannot_be_changed() -> None:
    with pytest.raises(InvalidJob, match="cannot change a heterogeneous job: use 'retry'"):
        changed({"mem": "x2"}, het=(BatchJob(nodes=1),))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "nothing changes: use 'retry'"),
        ({"memory": "x2"}, "a job has no option memory: did you mean"),
        ({"nodes": "x2"}, "expected a value of nodes, got 'x2': only mem and time_limit are multiplied"),
        ({"time_limit": "double"}, "time_limit: 'double' is not a duration: .*, or a multiple such as 'x2'"),
        ({"partition": "long", "nodes": "many"}, "retry: nodes: 'many' is not a number of nodes"),
    ],
)
def test_a_change_that_means_nothing_is_refused_when_the_dag_is_parsed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        retry(**changes)
