"""What is asked after a job was refused, to say more than Slurm does; a job that is taken costs no question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.slurm.accounts import UserRights
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.records import Partition
from airflow_provider_soperator.slurm.requests import ListPartitions, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.requests.once import Submitted
from airflow_provider_soperator.slurm.rights import OF_ACCOUNTING, OF_PARTITIONS, explained, option_of
from airflow_provider_soperator.transports.errors import TransportError


def told(jobs: Sequence[BatchJob], answers: tuple[Submitted, ...]) -> Steps[tuple[Submitted, ...]]:
    """The answers, with refusals of accounts, QOS and partitions that name what may be used instead."""
    refused = {option_of(answer.error) for answer in answers} - {""}
    if not refused:
        return answers
    rights: UserRights | None = None
    partitions: tuple[Partition, ...] = ()
    try:
        if refused & {*OF_ACCOUNTING}:
            rights = yield ShowRights((yield WhoAmI()))
        if OF_PARTITIONS in refused:
            partitions = yield ListPartitions()
    except (SlurmError, TransportError):
        # What Slurm has said is said in any case.
        pass
    return tuple(
        dataclasses.replace(answer, error=explained(answer.error, job, rights, partitions))
        if answer.error and option_of(answer.error)
        else answer
        for job, answer in zip(jobs, answers, strict=True)
    )
