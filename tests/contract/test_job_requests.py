"""Jobs, over every way: each says the same of them, and does the same to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from airflow_provider_soperator.slurm.errors import InvalidRequest, NotPermitted, SubmitRefused, UnknownJob, UnknownUser
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    HoldJobs,
    JobDetail,
    ListJobs,
    ReleaseJobs,
    RequeueJobs,
    TopJobs,
    UpdateJob,
)
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.transports.rest import RestTransport
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.contract.comparison import all_differences, differences
from tests.contract.transports import REST, AsyncWay, Run, Way, minted, newest, url_of
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE
from tests.submissions import Submit

# What Slurm answers differs from one version to the next.
pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("jobs")]

ODD = 'it\'s "odd" & $(id) | 50% \\ ünï 日本'
#: Longer than what slurmrestd and sacct write of a list of elements.
SPARSE = "1,2,4,8,16,32,64,128,256,512,600,603,604,607,610,615,620,623,629,690,701,703,705,789"
NOBODY = JobId(999_999)

T = TypeVar("T")


@pytest.fixture
def commands(connect: Callable[[str], Way]) -> Way:
    return connect("local")


@pytest.fixture
def unknown(request: pytest.FixtureRequest, cluster: Cluster) -> set[str]:
    """Fields of a job that a way cannot know as the commands do."""
    return {"stdout"} if request.node.callspec.params["way"] in REST and newest(cluster) < 43 else set()


@pytest.fixture
def version(request: pytest.FixtureRequest, cluster: Cluster) -> int:
    """Of slurmrestd's interface; as good as any for the others."""
    return newest(cluster) if request.node.callspec.params["way"] in REST else 99


def settled(apart: Callable[..., T], *asked: object) -> T:
    """What two answers have apart, asked for until that is nothing.

    Slurm plans anew every few seconds, forgets what is old, and hears of ends, and so perhaps between the two.
    """
    until = time.monotonic() + PATIENCE
    while (found := apart(*asked)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def the_job(way: Way, job: JobId) -> object:
    [found] = way.ask(ListJobs(ids=(job,)))
    return found


def test_jobs_are_the_same_over_every_way(way: Way, commands: Way, unknown: set[str], cluster: Cluster) -> None:
    jobs = (
        BatchJob(command="true", name=ODD, comment=ODD, hold=True, time_limit="1-02:03:04", chdir="/tmp"),
        BatchJob(command="true", name="sparse", array=SPARSE, array_limit=2, hold=True, chdir="/root"),
        BatchJob(command="true", name="even", array=range(0, 30, 3), hold=True, chdir="/root"),
        BatchJob(command="true", name="het", het=(BatchJob(nodes=1, name="part"),), hold=True, chdir="/root"),
        BatchJob(command="exit 3", name="fails", gpus_per_node=2, chdir="/root"),
        BatchJob(command="kill -9 $$", name="dies", chdir="/root"),
        BatchJob(command="sleep 300", name="goes", chdir="/root"),
    )
    ids = [way.ask(Submit(job)) for job in jobs]
    blocked = way.ask(Submit(BatchJob(command="true", dependency=f"afterok:{ids[0]}", begin="now+1hour", chdir="/tmp")))
    cluster.wait_job(str(ids[4]), "FAILED")
    cluster.wait_job(str(ids[5]), "FAILED")
    cluster.wait_job(str(ids[6]), "RUNNING")
    # Between two questions the clock may move on.
    unknown |= {"time_used"}

    def apart(chosen: tuple[JobId, ...] | None) -> list[object]:
        said, expected = way.ask(ListJobs(ids=chosen)), commands.ask(ListJobs(ids=chosen))
        only_one_has = {job.id for job in said} ^ {job.id for job in expected}
        # Others may have left jobs of srun's behind, whose batch host is another to each.
        said, expected = (
            tuple(job for job in jobs if any(job.id.job == own.job for own in (*ids, blocked)))
            for jobs in (said, expected)
        )
        return [*only_one_has, *all_differences(said, expected, "id", unknown).items()]

    for chosen in (None, (ids[0], ids[1]), (*ids, blocked)):
        assert settled(apart, chosen) == []
    # Of a job that is over the time stands still.
    assert differences(the_job(way, ids[4]), the_job(commands, ids[4]), unknown - {"time_used"}) == {}
    found = way.ask(ListJobs(ids=(JobId(ids[1].job, element=690),)))
    assert [job.id.covers(JobId(ids[1].job, element=690)) for job in found] == [True]
    assert way.ask(ListJobs(ids=(NOBODY,))) == ()


def test_squeue_knows_each_column(commands: Way) -> None:
    # It lists an unknown one as empty, with a word on stderr.
    assert commands.ask(Run(ListJobs().command().argv)).stderr == b""


def test_jobs_are_found_by_what_is_asked_for(way: Way, cluster: Cluster) -> None:
    names = (ODD, "plain", "plain.af-x")
    ids = [way.ask(Submit(BatchJob(command="true", name=name, hold=True))) for name in names]
    other = JobId.parse(
        cluster.run("runuser", "-u", "alice", "--", "sbatch", "--parsable", "-H", "--wrap=true").strip()
    )
    questions = {
        ListJobs(names=(ODD,)): {ids[0]},
        ListJobs(names=("plain", "nothing")): {ids[1]},
        ListJobs(name_suffixes=(".af-x",)): {ids[2]},
        ListJobs(mine=True, states=("PENDING",)): set(ids),
        ListJobs(user="alice", states=("PENDING", "RUNNING")): {other},
        ListJobs(partition="hidden"): set(),
    }
    for question, expected in questions.items():
        # The queue remembers jobs of other tests.
        assert {job.id for job in way.ask(question)} & {*ids, other} == expected, question


def test_jobs_are_held_released_changed_and_cancelled(way: Way, cluster: Cluster) -> None:
    jobs = tuple(way.ask(Submit(BatchJob(command="sleep 300", begin="now+1hour"))) for _ in range(2))
    way.ask(HoldJobs(jobs))
    assert all(job.is_held for job in way.ask(ListJobs(ids=jobs)))
    way.ask(ReleaseJobs(jobs))
    assert not any(job.is_held for job in way.ask(ListJobs(ids=jobs)))
    way.ask(UpdateJob(jobs[0], {"Comment": ODD, "AdminComment": ODD, "TimeLimit": "2:00:00", "JobName": "renamed"}))
    [changed] = way.ask(ListJobs(ids=jobs[:1]))
    assert (changed.comment, str(changed.time_limit), changed.name) == (ODD, "2:00:00", "renamed")
    assert changed.admin_comment == ODD
    assert "renamed" in way.ask(JobDetail(jobs[0]))
    way.ask(UpdateJob(jobs[0], {"Comment": "", "AdminComment": ""}))
    [changed] = way.ask(ListJobs(ids=jobs[:1]))
    assert (changed.comment, changed.admin_comment) == ("", "")
    # One that is gone is no error, and does not keep the others.
    way.ask(CancelJobs(ids=(NOBODY, *jobs)))
    assert [job.state.base for job in way.ask(ListJobs(ids=jobs))] == [JobBase.CANCELLED] * 2
    way.ask(CancelJobs(ids=jobs))


def test_elements_of_an_array_are_cancelled(way: Way, cluster: Cluster) -> None:
    array = way.ask(Submit(BatchJob(command="true", array="0-9", hold=True)))
    way.ask(CancelJobs(ids=(JobId.parse(f"{array}_[2-4]"), JobId(array.job, element=7))))
    [left] = [job for job in way.ask(ListJobs(ids=(array,))) if job.id.elements]
    assert left.id == JobId.parse(f"{array}_[0-1,5-6,8-9]")


def test_a_signal_reaches_the_steps(way: Way, cluster: Cluster) -> None:
    step = "trap 'exit 7' USR1; touch /root/ready-$SLURM_JOB_ID; while :; do sleep 0.1; done"
    job = way.ask(Submit(BatchJob(command=["srun", "bash", "-c", step])))
    cluster.wait("the trap is set", lambda: cluster.try_run("test", "-e", f"/root/ready-{job}").returncode == 0)
    way.ask(CancelJobs(ids=(job,), signal="USR1"))
    cluster.wait_job(str(job), "FAILED")
    assert way.ask(ListJobs(ids=(job,)))[0].exit_code.code == 7


def test_what_cannot_be_is_refused(way: Way) -> None:
    for request in (
        HoldJobs((NOBODY,)),
        ReleaseJobs((NOBODY,)),
        UpdateJob(NOBODY, {"Comment": "x"}),
        JobDetail(NOBODY),
    ):
        with pytest.raises(UnknownJob):
            way.ask(request)
    with pytest.raises(InvalidRequest):
        way.ask(CancelJobs(ids=()))
    with pytest.raises(SubmitRefused, match=r"(?i)invalid partition"):
        way.ask(Submit(BatchJob(command="true", partition="nowhere")))


def test_jobs_of_others_are_not_touched(cluster: Cluster) -> None:
    job = JobId.parse(cluster.held_job())
    alice = AsyncWay(lambda: RestTransport(url_of(cluster), minted(cluster, "alice")))
    for request in (CancelJobs(ids=(job,)), HoldJobs((job,)), UpdateJob(job, {"Comment": "mine"})):
        with pytest.raises(NotPermitted):
            alice.ask(request)
    alice.close()


def test_jobs_are_requeued_and_put_first(way: Way, version: int, cluster: Cluster) -> None:
    job = way.ask(Submit(BatchJob(command="exit 3")))
    cluster.wait_job(str(job), "FAILED")
    if version < 45:
        for request in (RequeueJobs((job,), hold=True), TopJobs((job,))):
            with pytest.raises(NotSupported, match=r"slurmrestd .*cannot .*ssh, kubernetes or local"):
                way.ask(request)
        return
    way.ask(RequeueJobs((job,), hold=True))
    cluster.wait("it is back", lambda: way.ask(ListJobs(ids=(job,)))[0].is_held)
    with pytest.raises(UnknownJob):
        way.ask(RequeueJobs((NOBODY,)))


def test_accounting_is_the_same_over_every_way(way: Way, commands: Way, cluster: Cluster) -> None:
    jobs = (
        BatchJob(command="exit 3", name="fails", gpus_per_node=2, comment=ODD),
        BatchJob(command="srun true", name="steps", time_limit=5),
        BatchJob(command="true", name="sparse", array=SPARSE, array_limit=2, hold=True),
        BatchJob(command="true", name="few", array="1,3"),
        BatchJob(command="true", name="het", het=(BatchJob(nodes=1),)),
    )
    ids = tuple(way.ask(Submit(job)) for job in jobs)
    way.ask(CancelJobs(ids=(ids[2],)))
    question = Accounting(ids=ids, steps=True)

    def ended() -> bool:
        found = commands.ask(question)
        return len(found) == 7 and all(job.state.is_finished and job.ended for job in found)

    cluster.wait("accounting has their ends", ended)

    def apart(question: Accounting) -> dict[str, object]:
        return all_differences(way.ask(question), commands.ask(question), "id")

    assert settled(apart, question) == {}
    first = commands.ask(question)[0].submitted
    for question in (
        Accounting(names=("fails", "steps", "nothing"), since=first),
        Accounting(user="root", since=first),
        Accounting(ids=(NOBODY,)),
    ):
        assert settled(apart, question) == {}, question
    with pytest.raises(UnknownUser):
        way.ask(Accounting(user="nobody-at-all", since=first))
