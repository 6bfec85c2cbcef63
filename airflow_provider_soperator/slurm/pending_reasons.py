"""Why a job waits: Slurm's reason in words."""

from __future__ import annotations

from airflow_provider_soperator.slurm.job_records import Job

#: The beginning of a reason that slurmctld writes out, up to its first comma, as all requests read it.
NODES_DOWN = "Nodes_required_for_job_are_DOWN"
#: Slurm's words for reasons (``job_reasons`` in its documentation of squeue), worded to follow "waits:".
_WORDS = {
    "None": "slurmctld has not looked at it yet",
    "Priority": "jobs of a higher priority come first",
    "Resources": "what it asks for is not free; it is the next to get it",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on has ended otherwise than it needs, so it never starts",
    "BeginTime": "its earliest start is in the future",
    "JobHeldUser": "its owner holds it",
    "JobHeldAdmin": "an administrator, or a failed start, holds it",
    "JobHoldMaxRequeue": "it is held, as it was requeued too often",
    "JobArrayTaskLimit": "as many elements of its array run as may at a time",
    "Licenses": "its licences are in use",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionConfig": "its partition cannot run it as it is configured",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "Reservation": "its reservation has not begun, or its nodes are in use",
    "ReservationDeleted": "its reservation was deleted",
    "ReqNodeNotAvail": "nodes that it asks for are off, down, drained or reserved",
    "NodeDown": "a node that it asks for is down",
    NODES_DOWN: "the nodes that it can run on are down, drained, or reserved for partitions of a higher priority",
    "BadConstraints": "no node has the features that it asks for",
    "Constraints": "no free node has the features that it asks for",
    "Prolog": "its prolog runs",
    "Cleaning": "its last run is being cleaned up",
    "SchedDefer": "slurmctld puts off starts while it is busy",
    "InvalidAccount": "its account is not known",
    "InvalidQOS": "its QOS is not known",
    "MaxMemPerLimit": "it asks for more memory than is allowed",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not be used there",
    "MaxPoweredUpNodes": "as many nodes are on as may be at a time",
    "QOSUsageThreshold": "its account has used more than its QOS allows",
    "BurstBufferResources": "space in the burst buffer is in use",
    "FrontEndDown": "no front end is up",
}
#: What limits count, by the part of a reason that names it; the first one that fits is said.
_COUNTED = {
    "GRES": "GPUs",
    "Node": "nodes",
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Mem": "memory",
    "Submit": "submitted jobs",
    "Job": "jobs",
    "Wall": "time",
    "Time": "time",
    "Billing": "billing",
    "License": "licences",
    "Energy": "energy",
    "BB": "burst buffer",
    "Resource": "resources",
    "Unknown": "resources",
}
#: Whose limit it is, by the beginning of a reason. Limits per account or user without another word are a QOS's, too.
_WHOSE = {"QOS": "its QOS", "Max": "its QOS", "Assoc": "its account"}


def reason_in_words(job: Job) -> str:
    """Why a pending job waits; Slurm's own word where there is no better one, empty if the job does not wait.

    >>> from airflow_provider_soperator.slurm.job_ids import JobId
    >>> from airflow_provider_soperator.slurm.states import JobState
    >>> reason_in_words(Job(id=JobId(1), state=JobState.parse("PENDING"), reason="QOSMaxGRESPerUser"))
    'its QOS allows no more GPUs per user (QOSMaxGRESPerUser)'
    """
    if not job.state.is_pending:
        return ""
    reason = job.reason or "None"
    first = job.reasons[0] or "None"
    if first in _WORDS:
        return f"{_WORDS[first]} ({reason})"
    whose = next((words for beginning, words in _WHOSE.items() if first.startswith(beginning)), "")
    limit, _, per = first.removesuffix("Limit").partition("Per")
    what = next((words for part, words in _COUNTED.items() if part in limit), "")
    if not whose or not what:
        return reason
    if limit.startswith("QOSMin"):
        return f"its QOS is for jobs that ask for more {what} ({reason})"
    # What was used so far is counted, or what is left of the time limits of jobs that run.
    minutes = "minutes of " if "Min" in limit else ""
    return f"{whose} allows no more {minutes}{what}{per and f' per {per.lower()}'} ({reason})"
