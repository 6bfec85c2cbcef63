"""What is asked about a refusal, and when nothing is."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator.client.refusals import explained_answers
from airflow_provider_soperator.slurm.cluster_records import Association, ClusterConfig, Node, Partition, UserRights
from airflow_provider_soperator.slurm.errors import AccountingUnreachable, QueueFull, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListNodes, ListPartitions, Request, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.transports.transport_errors import NotSupported

GOOD = Submitted(JobId(7))
ALICE = UserRights(user="alice", associations=(Association("vision"),))


def refused(option: str) -> Submitted:
    return Submitted(None, error=SubmitRefused("Invalid thing", option=option))


class Asked:
    """Answers, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"WhoAmI": "alice", "ShowRights": ALICE, "ListPartitions": (Partition(name="main"),), **answers}
        self.requests: list[Request[Any]] = []

    def __call__(self, request: Request[Any]) -> Any:
        self.requests.append(request)
        answer = self.answers[type(request).__name__]
        if isinstance(answer, Exception):
            raise answer
        return answer


def jobs(*accounts: str) -> list[BatchJob]:
    return [BatchJob(command="x", account=account, partition="mian") for account in accounts]


def test_jobs_that_are_taken_or_refused_for_something_else_cost_no_question() -> None:
    asked = Asked()
    answers = (GOOD, refused("--time"))
    good, other = run_steps(explained_answers(jobs("a", "b"), answers), asked)
    assert run_steps(explained_answers(jobs("a"), (GOOD,)), asked) == (GOOD,)
    assert asked.requests == []
    assert good is GOOD
    # It is not called so here.
    assert str(other.error) == "see the parameter time_limit (sbatch: Invalid thing)"


def test_many_refusals_are_one_question() -> None:
    asked = Asked()
    answers = run_steps(
        explained_answers(jobs("visoin", "vision", "bision"), (refused("--account"), GOOD, refused("--account"))), asked
    )
    assert asked.requests == [WhoAmI(), ShowRights("alice")]
    assert answers[1] is GOOD
    assert ["did you mean 'vision'?" in str(answers[place].error) for place in (0, 2)] == [True, True]


def test_of_a_partition_accounting_is_not_asked() -> None:
    asked = Asked()
    [answer] = run_steps(explained_answers(jobs("vision"), (refused("--partition"),)), asked)
    assert asked.requests == [ListPartitions()]
    assert "did you mean 'main'?" in str(answer.error)


def test_what_the_nodes_have_is_told_where_more_was_asked_for() -> None:
    has = {"cpus": 128, "memory": 1_500_000, "gres": "gpu:h100:8", "partitions": ("main",)}
    gpu = [Node(name=f"worker-{number}", **has) for number in range(2)]
    cpu = [Node(name="cpu-0", cpus=192, memory=64000, partitions=("main", "spare"))]
    asked = Asked(ListNodes=(*gpu, *cpu))
    job = BatchJob(command="x", partition="main", gpus_per_node=16)
    for option in ("--nodes", "--gres"):
        [answer] = run_steps(explained_answers([job], (refused(option),)), asked)
        assert str(answer.error) == (
            "partition main has 3 nodes, and at most 8 GPUs (worker-[0-1]: gpu:h100:8), 192 CPUs and 1500000 MiB on "
            "one (sbatch: Invalid thing)"
        )
    [answer] = run_steps(explained_answers([job.replace(partition="spare")], (refused("--nodes"),)), asked)
    assert "partition spare has 1 nodes, and at most no GPUs, 192 CPUs" in str(answer.error)
    assert asked.requests == [ListNodes()] * 3


def test_who_cannot_be_asked_leaves_the_refusal_as_it_is() -> None:
    answers = (refused("--account"),)
    assert (
        run_steps(explained_answers(jobs("visoin"), answers), Asked(ShowRights=AccountingUnreachable("no"))) == answers
    )


def test_an_array_that_never_fits_does_not_wait_for_a_full_queue() -> None:
    full = Submitted(None, error=QueueFull("MaxJobCount limit reached"))
    job = BatchJob(command="x")
    wide = [job.replace(array="0-9"), job.replace(array="0-10"), BatchJob(script="#!/bin/sh\n#SBATCH --array=1-22:2\n")]
    asked = Asked(ShowConfig=ClusterConfig(version="24.11.5", settings={"MaxJobCount": "10"}))
    answers = run_steps(explained_answers([job, *wide], (full,) * 4), asked)
    assert answers[:2] == (full, full)
    assert [type(one.error) for one in answers[2:]] == [SubmitRefused] * 2
    assert "the array has 11 elements, and the cluster's MaxJobCount is 10" in str(answers[3].error)
    assert asked.requests == [ShowConfig()]
    unknown = Asked(ShowConfig=NotSupported("slurmrestd cannot"))
    assert run_steps(explained_answers(wide, (full,) * 3), unknown) == (full,) * 3
    assert run_steps(explained_answers([job], (full,)), Asked()) == (full,)
