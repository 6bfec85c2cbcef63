"""Answers of a Slurm as values, for tests of what is made of them."""

from __future__ import annotations

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.states import JobState


def queued(job: str, state: str, name: str = "train") -> Job:
    return Job(id=JobId.parse(job), state=JobState.parse(state), name=name, user="alice")


def past(job: str, state: str, name: str = "train", submit_line: str = "") -> AccountingJob:
    return AccountingJob(id=JobId.parse(job), state=JobState.parse(state), name=name, submit_line=submit_line)
