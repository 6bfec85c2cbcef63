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


#: Limits among Slurm's reasons (job_state_reason.c) by what they are about; X stands for each resource.
RESOURCES = {
    **{"BB": "burst buffer", "Billing": "billing", "Energy": "energy", "GRES": "GPUs", "License": "licences"},
    **{"Cpu": "CPUs", "CPU": "CPUs", "Mem": "memory", "Memory": "memory", "Node": "nodes", "Unknown": "resources"},
}
LIMITS = {
    "its account allows no more X": "AssocGrpX AssocGrpXLimit",
    "its account allows no more X per job": "AssocMaxXPerJob AssocMaxXPerJobLimit",
    "its account allows no more X per node": "AssocMaxXPerNode",
    "its account allows no more minutes of X": (
        "AssocGrpXMinutes AssocGrpXRunMinutes AssocGrpXMinutesLimit AssocGrpXRunMinutesLimit"
    ),
    "its account allows no more minutes of X per job": "AssocMaxXMinutesPerJob AssocMaxXMinutesPerJobLimit",
    "its QOS allows no more X": "QOSGrpX QOSGrpXLimit",
    "its QOS allows no more X per job": "QOSMaxXPerJob QOSMaxXPerJobLimit",
    "its QOS allows no more X per node": "QOSMaxXPerNode",
    "its QOS allows no more X per user": "QOSMaxXPerUser QOSMaxXPerUserLimit",
    "its QOS allows no more X per account": "MaxXPerAccount",
    "its QOS allows no more minutes of X": (
        "QOSGrpXMinutes QOSGrpXRunMinutes QOSGrpXMinutesLimit QOSGrpXRunMinutesLimit"
    ),
    "its QOS allows no more minutes of X per job": "QOSMaxXMinutesPerJob QOSMaxXMinutesPerJobLimit",
    "its QOS allows no more minutes of X per account": "MaxXRunMinsPerAccount",
    "its QOS allows no more minutes of X per user": "MaxXRunMinsPerUser",
    "its QOS is for jobs that ask for more X": "QOSMinX QOSMinXNotSatisfied",
    "its account allows no more jobs": "AssociationJobLimit AssocGrpJobsLimit AssocMaxJobsLimit",
    "its account allows no more submitted jobs": "AssocGrpSubmitJobsLimit AssocMaxSubmitJobLimit",
    "its account allows no more resources": "AssociationResourceLimit",
    "its account allows no more time": "AssociationTimeLimit AssocGrpWallLimit",
    "its account allows no more time per job": "AssocMaxWallDurationPerJobLimit",
    "its QOS allows no more jobs": "QOSJobLimit QOSGrpJobsLimit",
    "its QOS allows no more jobs per account": "MaxJobsPerAccount",
    "its QOS allows no more jobs per user": "QOSMaxJobsPerUserLimit",
    "its QOS allows no more submitted jobs": "QOSGrpSubmitJobsLimit",
    "its QOS allows no more submitted jobs per account": "MaxSubmitJobsPerAccount",
    "its QOS allows no more submitted jobs per user": "QOSMaxSubmitJobPerUserLimit",
    "its QOS allows no more resources": "QOSResourceLimit",
    "its QOS allows no more time": "QOSTimeLimit QOSGrpWallLimit",
    "its QOS allows no more time per job": "QOSMaxWallDurationPerJobLimit",
}


@pytest.mark.parametrize("said", LIMITS)
def test_a_limit_is_told_as_what_it_is(said: str) -> None:
    for reason in LIMITS[said].split():
        for part, resource in RESOURCES.items() if "X" in reason else [("", "")]:
            slurm = reason.replace("X", part)
            assert words(slurm) == f"{said.replace('X', resource)} ({slurm})"


@pytest.mark.parametrize(
    "reason", ["MaxMemPerLimit", "MaxPoweredUpNodes", "QOSNotAllowed", "QOSUsageThreshold", "JobHoldMaxRequeue"]
)
def test_what_looks_like_a_limit_has_words_of_its_own(reason: str) -> None:
    assert words(reason).endswith(f" ({reason})")
    assert " allows no more " not in words(reason)


def test_a_limit_that_a_newer_slurm_has_is_left_as_it_is() -> None:
    assert words("QOSMaxSomethingPerUser") == "QOSMaxSomethingPerUser"


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
