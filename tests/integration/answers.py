"""Asks the requests of the pure core of the Slurm in a sandbox, with nothing of the provider in between."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    Command,
    CommandOutput,
    ListJobs,
    ListNodes,
    Request,
)
from tests.integration.cluster import LOGIN, Cluster
from tests.submissions import Submit

T = TypeVar("T")

#: Everything that has broken a parser of somebody's: separators, line breaks, formats, shells, other alphabets.
HOSTILE = "a|b,c'\"\n~x\t$(id)`; é😀 %s %n = State=RUNNING\\ "


def answer(cluster: Cluster, command: Command, user: str = "root") -> CommandOutput:
    argv = ["runuser", "-u", user, "--", *command.argv] if user != "root" else list(command.argv)
    ran = subprocess.run(
        cluster.sandbox.init.enter(LOGIN, argv),
        input=command.stdin,
        capture_output=True,
        timeout=command.timeout,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", **command.environment},
    )
    return CommandOutput(ran.returncode, ran.stdout, ran.stderr)


def ask(cluster: Cluster, request: Request[T], user: str = "root") -> T:
    return request.read(answer(cluster, request.command(), user))


def submit(cluster: Cluster, **fields: Any) -> JobId:
    return ask(cluster, Submit(BatchJob(command="true", output="/root/%j.out", **fields)))


def sbatch(cluster: Cluster, *options: str | bytes) -> JobId:
    """Submit what a BatchJob would refuse, and other people's jobs may have."""
    words = ("sbatch", "--parsable", "--hold", "--output=/root/%j.out", *options, "--wrap=true")
    return JobId.parse(answer(cluster, Command(words)).text)  # type: ignore[arg-type]


def the_job(cluster: Cluster, job: JobId) -> Job:
    (found,) = ask(cluster, ListJobs(ids=(job,)))
    return found


def accounted(cluster: Cluster, **asked: Any) -> tuple[AccountingJob, ...]:
    """What accounting knows, once it knows that all of it has ended."""

    def ended() -> tuple[AccountingJob, ...]:
        jobs = ask(cluster, Accounting(**asked))
        return jobs if all(job.state.is_finished for job in jobs) else ()

    return cluster.wait("accounting knows the end", ended)


def the_node(cluster: Cluster, name: str = "worker-1") -> Node:
    (found,) = ask(cluster, ListNodes((name,)))
    return found


def wait_node(cluster: Cluster, is_so: Callable[[Node], bool], name: str = "worker-1") -> Node:
    return cluster.wait(f"{name} {is_so.__name__}", lambda: (node := the_node(cluster, name)) and is_so(node) and node)  # type: ignore[return-value]


def submit_held(cluster: Cluster, **fields: Any) -> Job:
    return the_job(cluster, submit(cluster, hold=True, **fields))
