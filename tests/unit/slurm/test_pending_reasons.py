"""Why a job waits, in words."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests import CommandOutput, ListJobs
from airflow_provider_soperator.slurm.states import JobState


def listed(reason: str) -> Job:
    """A job for whose wait squeue gives this reason."""
    squeue = ListJobs()
    row = {"JobArrayId": "1", "State": "PENDING", "Reason": reason}
    line = "".join(row.get(column, "") + squeue.table.separator for column in squeue.table.columns)
    [job] = squeue.read(CommandOutput(0, f"{line}\n".encode()))
    return job


def words(reason: str, state: str = "PENDING") -> str:
    return reason_in_words(Job(id=JobId(1), state=JobState.parse(state), reason=reason))


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("", "slurmctld has not looked at it yet (None)"),
        ("Priority", "jobs of a higher priority come first (Priority)"),
        ("QOSMaxJobsPerUserLimit", "its QOS allows no more jobs per user (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRES", "its account allows no more GPUs (AssocGrpGRES)"),
        ("QOSGrpCpuLimit", "its QOS allows no more CPUs (QOSGrpCpuLimit)"),
        ("AssocGrpMemLimit", "its account allows no more memory (AssocGrpMemLimit)"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_a_reason_has_words_and_keeps_its_own(reason: str, said: str) -> None:
    assert words(reason) == said


def test_the_nodes_that_a_reason_names_are_kept() -> None:
    said = words("ReqNodeNotAvail, UnavailableNodes:worker-6")
    assert said.startswith("nodes that it asks for are off")
    assert said.endswith("(ReqNodeNotAvail, UnavailableNodes:worker-6)")


@pytest.mark.parametrize("rebooting", ["", ", REBOOTING"])
def test_a_long_reason_of_slurm_has_commas_and_blanks_of_its_own(rebooting: str) -> None:
    slurm = f"Nodes required for job are DOWN, DRAINED{rebooting} or reserved for jobs in higher priority partitions"
    assert reason_in_words(listed(slurm)).startswith("the nodes that it can run on are down")


def test_a_job_that_runs_waits_for_nothing() -> None:
    assert words("None", "RUNNING") == ""
