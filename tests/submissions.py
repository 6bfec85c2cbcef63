"""Jobs that nobody has submitted yet, asked for until they are there, and the proof that each is there once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted, Together
from airflow_provider_soperator.slurm.rest.calls import RestSteps, Site, handles
from airflow_provider_soperator.slurm.rest.jobs import submitted
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from airflow_provider_soperator.transports.transport_errors import TransportError
from tests.contract.transports import Way
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

#: Where submissions leave what they have begun, and what was withdrawn.
WITHDRAWALS = "/root/.cache/airflow-soperator/withdrawn"


@dataclass(frozen=True)
class Submit(Request[JobId]):
    """Submit a job as ``sbatch`` does, which makes another one each time."""

    job: BatchJob

    def command(self) -> Command:
        submission = self.job.submission()
        return Command(submission.argv, stdin=submission.stdin)

    def again(self) -> None:
        """Not repeatable."""

    def read(self, answer: CommandOutput) -> JobId:
        return JobId.parse(self.check(answer).text.strip())


@handles
def _submit(request: Submit, site: Site) -> RestSteps[JobId]:
    return submitted(request.job.to_payload(f"v0.0.{site.version}", site.user, site.home), site)


def new_jobs(count: int = 1, **fields: Any) -> tuple[BatchJob, ...]:
    """Jobs that nobody has submitted yet; they do nothing, unless told otherwise."""
    run = uuid.uuid4().hex
    keys = [SubmissionKey.derive("dag", run, "task", number, "1") for number in range(count)]
    fields = {"command": "true"} | fields
    return tuple(BatchJob(name=key.name("once"), **fields) for key in keys)


def after(job: BatchJob, *others: BatchJob, kind: str = "afterok") -> BatchJob:
    """The job, to wait for others by their keys."""
    keys = [key for other in others if (key := key_of(other.name or ""))]
    return job.replace(dependency=Dependency(kind, *keys))


def ask_until_known(
    way: Way, jobs: tuple[BatchJob, ...], timeout: float = PATIENCE, *, together: Together | None = None
) -> tuple[Submitted, ...]:
    """Ask as a client does that gives up only where there is no hope."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            answers = way.ask(SubmitOnce(jobs=jobs, together=together))
            failures: Sequence[SlurmError | TransportError] = [one.error for one in answers if one.error]
            if not failures:
                return answers
        except (SlurmError, TransportError) as error:
            failures = [error]
        for failure in failures:
            if not failure.retryable or time.monotonic() > deadline:
                raise failure
        time.sleep(0.05)


def is_submitting(cluster: Cluster) -> bool:
    """Whether the program of a submission has begun, and has not ended."""
    return ".begun" in cluster.try_run("ls", "-A", WITHDRAWALS).stdout


def withdrawn_keys(cluster: Cluster) -> set[str]:
    """The keys of submissions that were withdrawn."""
    return set(cluster.run("ls", WITHDRAWALS).split())


def ids_of(jobs: Sequence[BatchJob], answers: Sequence[Submitted]) -> dict[str, str]:
    return {str(job.name): str(answer.id) for job, answer in zip(jobs, answers, strict=True)}


def check_once(cluster: Cluster, ids: Mapping[str, str]) -> None:
    """Each of these names has one job, with the id that is expected, in the queue and in accounting."""
    expected = sorted((job_id, name) for name, job_id in ids.items())

    def ours(said: str) -> list[tuple[str, str]]:
        # Others have jobs with any name at all.
        listed = [line.partition("|") for line in said.splitlines()]
        return sorted((job_id, name) for job_id, _, name in listed if name in ids)

    assert ours(cluster.run("squeue", "--noheader", "--all", "--states=all", "--format=%F|%j")) == expected
    past = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,JobName", "--starttime=now-1hour")
    cluster.wait("accounting has each of them, and once", lambda: ours(cluster.run(*past)) == expected)
