"""A key has one job, whoever asks, how often, and whatever breaks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_soperator.slurm.errors import AccountingUnreachable, InvalidRequest, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Together, Withdraw
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.rest import RestTransport
from sandbox.lifecycle import Sandbox
from tests.contract.transports import WAYS, AsyncWay, Way, inside, minted, url_of
from tests.integration.cluster import Cluster
from tests.submissions import ask_until_known, new_jobs

pytestmark = pytest.mark.leaves("jobs")


def in_accounting(cluster: Cluster, job: BatchJob) -> list[str]:
    """The ids under which accounting knows a job's name."""
    options = ("--allocations", "--noheader", "--parsable2", "--format=JobID", "--starttime=now-1hour")
    return cluster.run("sacct", *options, f"--name={job.name}").split()


def test_the_second_time_the_job_is_adopted(way: Way, cluster: Cluster) -> None:
    jobs = new_jobs(3)
    first = way.ask(SubmitOnce(jobs=jobs[:2]))
    assert [one.adopted for one in first] == [False, False]
    second = way.ask(SubmitOnce(jobs=jobs))
    assert [one.adopted for one in second] == [True, True, False]
    assert [one.id for one in second[:2]] == [one.id for one in first]
    cluster.wait("accounting has it once", lambda: in_accounting(cluster, jobs[0]) == [str(first[0].id)])


def test_a_job_keeps_its_environment_and_script(way: Way, cluster: Cluster) -> None:
    value = 'it\'s "$HOME"\nand `more` ünïcødé'
    [job] = new_jobs(env={"ODD": value}, output="/root/once-%j.out")
    job = job.replace(command=None, script='#!/bin/bash\nprintf %s "$ODD"\n')
    [done] = way.ask(SubmitOnce(jobs=(job,)))
    assert done.id is not None
    cluster.wait_job(str(done.id), "COMPLETED")
    assert cluster.run("cat", f"/root/once-{done.id}.out") == value


def test_what_slurm_refuses_does_not_keep_others_from_being_submitted(way: Way) -> None:
    good, bad = new_jobs(2)
    refused, submitted = way.ask(SubmitOnce(jobs=(bad.replace(partition="nowhere"), good)))
    assert refused.id is None
    assert isinstance(refused.error, SubmitRefused)
    assert "invalid partition" in str(refused.error).lower()
    assert submitted.id is not None


def test_a_withdrawal_does_not_meet_what_is_submitted_later(way: Way, cluster: Cluster) -> None:
    jobs = new_jobs(2, hold=True)
    [there] = way.ask(SubmitOnce(jobs=jobs[:1]))
    for is_void in (False, True, False):
        way.ask(Withdraw(SubmitOnce(jobs=jobs).submission_keys(), is_void=is_void))
    for adopted in (False, True):
        assert [one.adopted for one in way.ask(SubmitOnce(jobs=jobs))] == [True, adopted]
    cluster.wait_job(str(there.id), "PENDING")


@pytest.mark.oldest_slurm
@pytest.mark.parametrize("racers", [3, pytest.param(6, marks=pytest.mark.soak)])
def test_many_who_race_for_one_key_get_one_job(racers: int, way: Way, cluster: Cluster) -> None:
    jobs = new_jobs(2)
    with ThreadPoolExecutor(racers) as pool:
        answers = list(pool.map(lambda _: ask_until_known(way, jobs), range(racers)))
    assert len({tuple(one.id for one in answer) for answer in answers}) == 1
    # Who lost the connection after it had submitted a job has adopted its own.
    assert sum(not one.adopted for answer in answers for one in answer) <= len(jobs)
    found = way.ask(ListJobs(name_suffixes=tuple(f".af-{key}" for key in SubmitOnce(jobs=jobs).submission_keys())))
    # Where there is no lock, some may have been submitted that could never start.
    assert len([job for job in found if job.state.base is not JobBase.CANCELLED]) == len(jobs)
    assert all(job.started is None or not job.nodelist for job in found if job.state.base is JobBase.CANCELLED)


def test_a_job_of_another_user_with_the_same_name_is_not_adopted(way: Way, cluster: Cluster) -> None:
    [job] = new_jobs()
    sbatch = ("sbatch", "--parsable", "--wrap=true", "--output=/dev/null", f"--job-name={job.name}")
    theirs = cluster.run("runuser", "-u", "alice", "--", *sbatch).strip()
    cluster.wait("accounting has it", lambda: in_accounting(cluster, job) == [theirs])
    [own] = way.ask(SubmitOnce(jobs=(job,)))
    assert not own.adopted
    assert str(own.id) != theirs


@pytest.mark.parametrize("form", ["local", "rest"])
def test_a_priority_that_only_operators_may_set_keeps_no_job_from_its_submission(form: str, cluster: Cluster) -> None:
    shell = inside(cluster, "runuser", "-u", "alice", "--", "env", "HOME=/home/alice", "/bin/sh")
    rest = RestTransport(url_of(cluster), minted(cluster, "alice"))
    alice = AsyncWay(lambda: rest if form == "rest" else LocalTransport(shell))
    # Lower than what they have without it, and higher, for which Slurm has errors of their own.
    new = new_jobs(2, comment="own", command="sleep 600")
    jobs = tuple(job.replace(priority=wish) for job, wish in zip(new, (1, 10**9), strict=True))
    submitted = alice.ask(SubmitOnce(jobs=jobs, together=Together.START))
    found = alice.ask(ListJobs(ids=tuple(one.id for one in submitted if one.id)))
    assert [(job.is_held, job.comment) for job in found] == [(False, "own")] * 2
    alice.close()


def test_without_accounting_only_what_is_surely_new_is_submitted(way: Way, cluster: Cluster) -> None:
    jobs = new_jobs()
    cluster.fault("slurmdbd-down")
    with pytest.raises(AccountingUnreachable):
        way.ask(SubmitOnce(jobs=jobs))
    [submitted] = way.ask(SubmitOnce(jobs=jobs, fresh=True))
    assert submitted.id is not None
    assert not submitted.adopted


@pytest.mark.oldest_slurm
def test_a_job_that_has_left_the_queue_is_found_in_accounting(sandbox: Sandbox) -> None:
    small = replace(sandbox.settings, name=f"forgets-{sandbox.settings.name}"[:32], port_base=0, workers=1, block=0)
    forgetful = Sandbox(replace(small, min_job_age=2, static=0))
    forgetful.up()
    try:
        cluster = Cluster(forgetful)
        way = WAYS["local"](cluster)
        # Accounting is asked for these by their names, as they are, and for the last by its user.
        odd = zip(new_jobs(3), ("my job", "données (1) $x", "训练"), strict=True)
        named = tuple(job.replace(name=str(job.name).replace("once", words)) for job, words in odd)
        jobs = (*new_jobs(), *new_jobs(array="1-3"), *named[:2])

        def is_past(*ids: JobId | None) -> bool:
            """Accounting has each of them, and the queue has none."""
            known = way.ask(Accounting(ids=tuple(one for one in ids if one)))
            ended = {job.id.job for job in known if job.state.is_finished}
            return ended == {one.job for one in ids if one} and not way.ask(ListJobs())

        first = way.ask(SubmitOnce(jobs=jobs))
        cluster.wait("only accounting has them", lambda: is_past(*(one.id for one in first)))
        second = way.ask(SubmitOnce(jobs=jobs))
        assert [(one.id, one.adopted) for one in second] == [(one.id, True) for one in first]
        [third] = way.ask(SubmitOnce(jobs=named[2:]))
        cluster.wait("only accounting has it", lambda: is_past(third.id))
        assert [(one.id, one.adopted) for one in way.ask(SubmitOnce(jobs=named[2:]))] == [(third.id, True)]
        way.close()
    finally:
        forgetful.down()


def test_jobs_need_keys_of_their_own() -> None:
    [job] = new_jobs()
    with pytest.raises(InvalidRequest, match="must end in"):
        SubmitOnce(jobs=(job.replace(name="plain"),))
    with pytest.raises(InvalidRequest, match="the same key"):
        SubmitOnce(jobs=(job, job))
