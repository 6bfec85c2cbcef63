"""Jobs that wait for each other: submitted together or not at all, whatever breaks, and changed while they wait."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TypeVar

import pytest

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.submissions import PendingSubmission
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.cluster_records import RateLimit
from airflow_provider_soperator.slurm.dependencies import Dependency, Unmet
from airflow_provider_soperator.slurm.errors import SlurmError, SubmitRefused, TogetherRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests import ListJobs, Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted, Together
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from airflow_provider_soperator.transports.local import LocalTransport
from tests.contract.transports import AsyncWay, Way, inside
from tests.integration.cluster import Cluster
from tests.integration.conftest import ConnectClient
from tests.integration.fire import over_ssh, stop_controller
from tests.submissions import after, ask_until_known, ids_of, new_jobs

T = TypeVar("T")

pytestmark = [pytest.mark.oldest_slurm, pytest.mark.leaves("jobs", "drains")]

DRAINED = "worker-cpu-0"


@pytest.fixture(params=["ssh", "rest"])
def way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    """A way that runs commands, and one that does not."""
    return connect(request.param)


class Over:
    """A way of the tests as a transport."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def ask(self, request: Request[T]) -> T:
        return await asyncio.to_thread(self._way.ask, request)

    async def close(self) -> None: ...


@pytest.fixture
def slurm(way: Way) -> SlurmClient:
    return SlurmClient(AsyncSlurmClient(Over(way)))


@pytest.fixture
def nothing_starts(cluster: Cluster) -> None:
    """``waiting`` jobs want a node that takes none, so that they can be looked at in peace."""
    cluster.run("scontrol", "update", f"nodename={DRAINED}", "state=drain", "reason=chains")


def waiting(count: int) -> tuple[BatchJob, ...]:
    return new_jobs(count, nodelist=DRAINED)


def submit(slurm: SlurmClient, jobs: Sequence[BatchJob]) -> tuple[Submitted, ...]:
    """Submit jobs in one request; their names end in keys."""
    batch = {number: PendingSubmission(job) for number, job in enumerate(jobs)}
    return tuple(run_steps(submissions.submit(batch), slurm.ask).values())


def status_of(slurm: SlurmClient, job: JobId) -> JobStatus:
    return slurm.statuses([job])[job]


def diamond(jobs: Sequence[BatchJob]) -> tuple[BatchJob, ...]:
    """One, two that wait for it, and one that waits for both; the last comes first."""
    first, left, right, last = jobs
    return after(last, after(left, first), right), after(left, first), after(right, first), first


def queued(slurm: SlurmClient | Way, jobs: Sequence[BatchJob]) -> dict[str, Job]:
    """What the queue has of these jobs and has not ended, by name; each is there once, if at all."""
    listed = slurm.ask(ListJobs(mine=True, names=tuple(job.name or "" for job in jobs)))
    found = [job for job in listed if not job.state.is_finished]
    assert len({job.name for job in found}) == len(found), f"there twice: {found}"
    return {job.name: job for job in found}


def waits_for(job: Job) -> set[int]:
    return {term.job.job for term in Unmet.parse(job.dependency).terms if term.job}


def check_diamond(way: Way, jobs: tuple[BatchJob, ...], ids: dict[str, str]) -> None:
    """Each waits for the ids that the others have, and none is held."""
    found = queued(way, jobs)
    last, left, right, first = (found[str(job.name)] for job in jobs)
    assert {name: str(job.id.whole) for name, job in found.items()} == ids
    assert waits_for(last) == {left.id.job, right.id.job}
    assert waits_for(left) == waits_for(right) == {first.id.job}
    assert not any(job.is_held or job.comment for job in found.values())


# Submitted together


@pytest.mark.each_slurm
def test_jobs_run_in_their_order(connect_client: ConnectClient, cluster: Cluster) -> None:
    log = f"/root/{uuid.uuid4().hex}"
    names = ("first", "left", "right", "last")
    jobs = [job.replace(command=f"echo {name} >>{log}") for job, name in zip(new_jobs(4), names, strict=True)]
    submitted = connect_client(cluster).do("submit_together", diamond(jobs))
    assert [one.adopted for one in submitted] == [False] * 4
    cluster.wait_job(str(submitted[0].id), "COMPLETED")
    said = cluster.run("cat", log).split()
    assert (said[0], sorted(said[1:3]), said[3]) == ("first", ["left", "right"], "last")


def test_one_that_is_refused_takes_the_others_with_it(slurm: SlurmClient, cluster: Cluster) -> None:
    first, left, right, last = new_jobs(4)
    bad = right.replace(name=key_of(right.name or "").name("wrong"), partition="nowhere")  # type: ignore[union-attr]
    # Were the first cancelled before it, this one could run.
    left = after(left, first, kind="afterany")
    with pytest.raises(TogetherRefused, match=r"wrong: .*partition") as refused:
        slurm.submit_together((first, left, after(bad, left), after(last, bad)))
    assert (refused.value.culprit, refused.value.number) == ("wrong", 2)
    assert isinstance(refused.value.__cause__, SubmitRefused)
    everything = slurm.ask(ListJobs(mine=True))
    assert not [job for job in everything if not job.state.is_finished]
    assert not [job for job in everything if job.name.endswith(".withdrawn") and job.nodelist]
    # The keys are free again.
    submitted = slurm.submit_together((first, left, after(right, left), after(last, right)))
    assert [one.adopted for one in submitted] == [False] * 4
    cluster.wait_job(str(submitted[3].id), "COMPLETED")


@pytest.mark.each_slurm
@pytest.mark.usefixtures("nothing_starts")
def test_after_a_success_nothing_changes(slurm: SlurmClient, cluster: Cluster) -> None:
    first, second, own = waiting(3)
    jobs = (first.replace(priority=77, comment="it's mine"), after(second, first), own.replace(hold=True, comment="x"))
    ids = [one.id for one in slurm.submit_together(jobs)]
    found = queued(slurm, jobs)
    assert [(found[str(job.name)].is_held, found[str(job.name)].comment) for job in jobs] == [
        *((False, "it's mine"), (False, ""), (True, "x"))
    ]
    assert found[str(first.name)].priority == 77
    cluster.run("scontrol", "uhold", str(ids[0]))
    again = slurm.submit_together(jobs)
    assert [(one.id, one.adopted) for one in again] == [(job, True) for job in ids]
    assert queued(slurm, jobs)[str(first.name)].is_held, "what its user has held was released"


@pytest.mark.usefixtures("nothing_starts")
def test_what_a_cut_has_left_is_completed(slurm: SlurmClient, way: Way) -> None:
    jobs = diamond(waiting(4))
    begun = slurm.ask(SubmitOnce(jobs=jobs[2:], together=Together.WAIT))
    assert queued(slurm, jobs)[str(jobs[3].name)].is_held
    submitted = slurm.submit_together(jobs)
    assert [one.adopted for one in submitted] == [False, False, True, True]
    assert [one.id for one in submitted[2:]] == [one.id for one in begun]
    check_diamond(way, jobs, ids_of(jobs, submitted))


@pytest.mark.usefixtures("nothing_starts")
def test_what_was_submitted_is_taken_back_and_submitted_anew(slurm: SlurmClient) -> None:
    jobs = diamond(waiting(4))
    first = slurm.submit_together(jobs)
    slurm.take_back(jobs)
    assert not [job for job in slurm.ask(ListJobs(mine=True)) if not job.state.is_finished]
    again = slurm.submit_together(jobs)
    assert [one.adopted for one in again] == [False] * 4
    assert {one.id for one in first}.isdisjoint(one.id for one in again)


def test_an_array_is_taken_back_whatever_has_ended_of_it(slurm: SlurmClient, cluster: Cluster) -> None:
    def elements(state: str) -> list[str]:
        return cluster.run("squeue", "--noheader", f"--states={state}", "--format=%i").split()

    jobs = new_jobs(command="[ $SLURM_ARRAY_TASK_ID = 0 ] || sleep 600", array="0-1")
    [submitted] = slurm.submit_together(jobs)
    cluster.wait("one has ended", lambda: f"{submitted.id}_0" in elements("COMPLETED"))
    slurm.take_back(jobs)
    cluster.wait("the other is cancelled", lambda: f"{submitted.id}_1" in elements("CANCELLED"))


@pytest.mark.usefixtures("nothing_starts")
def test_more_than_go_at_once_are_all_there_or_none(way: Way) -> None:
    slow = RateLimit(refill=1, period=timedelta(seconds=25))
    assert submissions.jobs_at_once(slow) == 3
    jobs = waiting(7)
    chain = (jobs[0], *(after(job, before) for before, job in pairwise(jobs)))
    submitted = run_steps(submissions.submit_together(chain, None, slow), way.ask)
    found = queued(way, chain)
    assert [found[str(job.name)].id for job in chain] == [one.id for one in submitted]
    assert not any(job.is_held or job.comment for job in found.values())
    refused = [job.replace(name=SubmissionKey.derive("dag", job.name or "", "t", -1, 1).name("once")) for job in jobs]
    chain = (*refused[:6], after(refused[6], refused[2]).replace(partition="nowhere"))
    with pytest.raises(TogetherRefused):
        run_steps(submissions.submit_together(chain, None, slow), way.ask)
    assert not queued(way, chain)


@pytest.mark.each_slurm
@pytest.mark.usefixtures("nothing_starts")
def test_arrays_and_heterogeneous_jobs(slurm: SlurmClient) -> None:
    array, parts, last = waiting(3)
    array = array.replace(array="0-3", comment="array")
    parts = parts.replace(het=(BatchJob(nodes=1, comment="second"),), comment="first")
    jobs = (array, parts, after(last, array, parts))
    submitted = slurm.submit_together(jobs)
    found = slurm.ask(ListJobs(mine=True, ids=tuple(one.id for one in submitted if one.id)))
    assert not any(job.is_held for job in found)
    assert sorted(job.comment for job in found) == ["", "array", "first", "second"]
    assert waits_for(queued(slurm, [last])[str(last.name)]) == {submitted[0].id.job, submitted[1].id.job}  # type: ignore[union-attr]


@pytest.mark.soak
@pytest.mark.usefixtures("nothing_starts")
def test_the_connection_is_cut_at_any_moment(cluster: Cluster) -> None:
    way, dice = over_ssh(cluster), random.Random(20)
    for _ in range(8):
        jobs = diamond(waiting(4))
        # A submission of these takes about 70 ms; the cut comes before, within, or after it.
        cut = threading.Timer(dice.uniform(0, 0.1), cluster.fault, ("login-cut",))
        cut.start()
        ids = ids_of(jobs, ask_until_known(way, jobs, together=Together.START))
        cut.join()
        ask_until_known(way, jobs, together=Together.START)
        check_diamond(way, jobs, ids)
    way.close()


@pytest.mark.usefixtures("nothing_starts")
def test_slurmctld_restarts(cluster: Cluster, way: Way) -> None:
    known: list[tuple[tuple[BatchJob, ...], dict[str, str]]] = []
    over = threading.Event()

    def submit() -> None:
        while not over.is_set():
            jobs = diamond(waiting(4))
            known.append((jobs, ids_of(jobs, ask_until_known(way, jobs, together=Together.START))))

    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(submit)
        try:
            cluster.wait("jobs are being submitted", lambda: submitting.done() or len(known) > 2)
            stop_controller(cluster)
            cluster.sandbox.up()
            enough = len(known) + 2
            cluster.wait("jobs are being submitted", lambda: submitting.done() or len(known) > enough)
        finally:
            over.set()
        submitting.result()
    for jobs, ids in known:
        check_diamond(way, jobs, ids)


@pytest.fixture(params=["rest", "locks of their own"])
def racers(request: pytest.FixtureRequest, connect: Callable[[str], Way], cluster: Cluster) -> Iterator[list[Way]]:
    """Ways whose submissions know nothing of each other until they look into the queue."""
    if request.param == "rest":
        yield [connect("rest") for _ in range(3)]
        return
    homes = [f"/root/home-{number}" for number in range(3)]
    ways = [AsyncWay(partial(LocalTransport, inside(cluster, "env", f"HOME={home}", "/bin/sh"))) for home in homes]
    yield list(ways)
    for way in ways:
        way.close()


@pytest.mark.soak
@pytest.mark.usefixtures("nothing_starts")
def test_many_who_race_agree_on_one_chain(racers: list[Way]) -> None:
    for _ in range(2):
        jobs = diamond(waiting(4))
        with ThreadPoolExecutor(len(racers)) as pool:
            asked = pool.map(lambda way, jobs=jobs: ask_until_known(way, jobs, together=Together.START), racers)
            answers = [ids_of(jobs, answer) for answer in asked]
        # Who was first may have been told before there was a lower id.
        final = ids_of(jobs, ask_until_known(racers[0], jobs, together=Together.START))
        assert answers == [final] * len(racers)
        check_diamond(racers[0], jobs, final)


# By keys and names


@pytest.mark.usefixtures("nothing_starts")
def test_a_key_names_a_job_that_is_in_the_queue(slurm: SlurmClient) -> None:
    first, second = waiting(2)
    [before] = submit(slurm, [first])
    [submitted] = submit(slurm, [after(second, first)])
    assert submitted.error is None
    assert before.id is not None
    assert waits_for(queued(slurm, [second])[str(second.name)]) == {before.id.job}


@pytest.mark.usefixtures("nothing_starts")
def test_a_key_that_nobody_has_is_refused(slurm: SlurmClient) -> None:
    nobody, lost, other = waiting(3)
    refused, submitted = submit(slurm, [after(lost, nobody), other])
    assert isinstance(refused.error, SubmitRefused)
    assert refused.error.option == "--dependency"
    assert str(key_of(nobody.name or "")) in str(refused.error)
    assert submitted.id is not None


@pytest.mark.each_slurm
@pytest.mark.usefixtures("nothing_starts")
def test_singleton_means_the_name_without_its_key(slurm: SlurmClient, cluster: Cluster) -> None:
    name = f"train {uuid.uuid4().hex[:6]}"
    keys = [SubmissionKey.derive("dag", name, "task", index, 1) for index in range(5)]
    script = "#!/bin/sh\n#SBATCH --dependency=singleton\ntrue\n"
    single = [BatchJob(script=script, name=key.name(name), nodelist=DRAINED) for key in keys[:3]]
    plain = cluster.sbatch(f"--job-name={name}", f"--nodelist={DRAINED}")
    ended = cluster.sbatch(f"--job-name={name}", "--hold")
    cluster.run("scancel", ended)
    one, two = submit(slurm, single[:2])
    submit(slurm, single[2:])
    found = queued(slurm, single)
    expected = [{int(plain)}]
    for before in (one, two):
        assert before.id is not None
        expected.append(expected[-1] | {before.id.job})
    assert [waits_for(found[str(job.name)]) for job in single] == expected
    # Where no job has the name there is nothing to wait for, and what else is waited for stays.
    alone = BatchJob(command="true", name=keys[3].name(name + "-"), nodelist=DRAINED, dependency="singleton")
    with_more = alone.replace(name=keys[4].name(name + "+"), dependency=[Dependency("afterok", keys[0]), "singleton"])
    assert not [one.error for one in submit(slurm, [alone, with_more]) if one.error]
    found = queued(slurm, [alone, with_more])
    assert waits_for(found[str(alone.name)]) == set()
    assert waits_for(found[str(with_more.name)]) == {one.id.job}  # type: ignore[union-attr]


# Changed while they wait


def is_in_vain(slurm: SlurmClient, job: JobId) -> bool:
    """Whether a part of the job waits for what can never come."""
    return any(part.reason == "DependencyNeverSatisfied" for part in status_of(slurm, job).parts)


@pytest.mark.each_slurm
def test_another_job_takes_the_place_of_one_that_failed(slurm: SlurmClient, cluster: Cluster) -> None:
    failed, other = cluster.sbatch(wrap="false"), cluster.held_job()
    kept = f"afterok:{failed},after:{other}"
    one, array = (
        cluster.sbatch(f"--dependency={kept}"),
        cluster.sbatch("--array=1-2", f"--dependency=aftercorr:{failed}"),
    )
    bystander = cluster.sbatch(f"--dependency=afterany:{other}")
    waits = [JobId.parse(job) for job in (one, array, bystander)]
    cluster.wait("they wait in vain", lambda: all(is_in_vain(slurm, job) for job in waits[:2]))
    new = cluster.sbatch("--array=1-2", wrap="true")
    assert sorted(slurm.relink(waits, JobId.parse(failed), JobId.parse(new))) == waits[:2]
    assert slurm.relink(waits, JobId.parse(failed), JobId.parse(new)) == ()
    cluster.wait("both have run", lambda: all(status_of(slurm, job).succeeded for job in waits[:2]))
    assert status_of(slurm, waits[2]).parts[0].dependency == f"afterany:{other}(unfulfilled)"
    cluster.let_go(other)


def numbers(answers: Sequence[Submitted]) -> list[JobId]:
    return [answer.id for answer in answers if answer.id is not None]


def test_a_job_that_takes_the_place_of_another_waits_for_none_of_its_name_that_follows(
    slurm: SlurmClient, cluster: Cluster
) -> None:
    name = f"nightly {uuid.uuid4().hex[:6]}"
    keys = [SubmissionKey.derive("dag", name, "task", index, 1) for index in range(4)]
    failed, one, of_another_run, again = (
        BatchJob(command="true", name=key.name(name), dependency="singleton", kill_on_invalid_dep=False) for key in keys
    )
    one = one.replace(dependency=[Dependency("afterok", keys[0]), "singleton"])
    old, *waits = numbers(submit(slurm, [failed.replace(command="false"), one, of_another_run]))
    cluster.wait("one waits in vain", lambda: is_in_vain(slurm, waits[0]))
    (new,) = numbers(submit(slurm, [again]))
    assert slurm.relink(waits[:1], old, new) == (waits[0],)
    cluster.wait("all have run", lambda: all(status_of(slurm, job).succeeded for job in (new, *waits)))


def test_the_place_can_be_taken_of_a_job_that_is_forgotten(connect_kind: ConnectClient, forgetful: Cluster) -> None:
    slurm = connect_kind("loop", forgetful)
    failed = forgetful.sbatch("--hold", wrap="false")
    one = forgetful.sbatch(f"--dependency=afterok:{failed}")
    # Else it may be forgotten before the other is submitted.
    forgetful.run("scontrol", "release", failed)
    forgetful.wait("it is forgotten", lambda: not slurm.ask(ListJobs(ids=(JobId.parse(failed),))))
    new = forgetful.sbatch("--hold")
    waits = JobId.parse(one)
    assert slurm.do("relink", [waits], JobId.parse(failed), JobId.parse(new)) == (waits,)
    [job] = slurm.ask(ListJobs(ids=(waits,)))
    assert job.dependency == f"afterok:{new}(unfulfilled)"
    with pytest.raises(SlurmError, match="dependency problem"):
        slurm.do("relink", [waits], JobId.parse(new), JobId.parse(failed))


@pytest.mark.each_slurm
def test_a_job_that_waits_in_vain_can_be_let_go(slurm: SlurmClient, cluster: Cluster) -> None:
    failed, other = cluster.sbatch("--hold", wrap="false"), cluster.held_job()
    one = JobId.parse(cluster.sbatch(f"--dependency=afterok:{failed},afterany:{other}"))
    assert not slurm.let_go(one)
    cluster.run("scontrol", "release", failed)
    cluster.wait("it waits in vain", lambda: is_in_vain(slurm, one))
    assert slurm.let_go(one)
    [part] = status_of(slurm, one).parts
    assert part.dependency == f"afterany:{other}(unfulfilled)"
    cluster.let_go(other)
    cluster.wait("it has run", lambda: status_of(slurm, one).succeeded)
    assert not slurm.let_go(one)


@pytest.mark.each_slurm
def test_elements_whose_counterpart_failed_are_let_go_alone(slurm: SlurmClient, cluster: Cluster) -> None:
    source = cluster.sbatch("--array=0-2%2", wrap="case $SLURM_ARRAY_TASK_ID in 1) false;; 2) sleep 3600;; esac")
    array = cluster.sbatch("--array=0-2", f"--dependency=aftercorr:{source}")

    def states() -> list[str]:
        return [
            str(part.state) for part in sorted(status_of(slurm, JobId.parse(array)).parts, key=lambda part: part.id)
        ]

    cluster.wait("one element waits in vain", lambda: is_in_vain(slurm, JobId.parse(array)))
    assert slurm.let_go(JobId.parse(array))
    cluster.wait("two elements have run", lambda: states().count("COMPLETED") == 2)
    assert states().count("PENDING") == 1, "the third was let go before its time"


def test_what_has_started_goes_on_when_the_waiting_is_cancelled(slurm: SlurmClient, cluster: Cluster) -> None:
    array, running = cluster.sbatch("--array=1-4%1", wrap="sleep 3600"), cluster.held_job()
    waits, ended = cluster.sbatch(f"--dependency=afterok:{running}"), cluster.sbatch()
    cluster.wait_job(running, "RUNNING")
    cluster.wait_job(ended, "COMPLETED")
    cluster.wait("an element runs", lambda: "RUNNING" in cluster.run("squeue", "-h", f"--jobs={array}", "--format=%T"))
    slurm.cancel_many(map(JobId.parse, (array, running, waits, ended)), waiting=True)
    left = cluster.run("squeue", "--noheader", "--format=%i").split()
    assert sorted(left) == sorted([f"{array}_1", running])


def test_jobs_that_have_not_ended_are_known_by_their_numbers_and_keys(slurm: SlurmClient, cluster: Cluster) -> None:
    ours, theirs = (SubmissionKey(letter * 12) for letter in "az")
    named = f"--job-name={ours.name('fit')}"
    plain, array = (JobId.parse(cluster.sbatch("--hold", named, *more)) for more in ((), ("--array=0-3",)))
    het = JobId.parse(cluster.sbatch("--hold", named, ":", "--job-name=second"))
    ended = JobId.parse(cluster.sbatch(named))
    cluster.wait_job(str(ended), "COMPLETED")
    asked = (plain, array, het, ended, JobId(999_999))
    assert set(slurm.unfinished(dict.fromkeys(asked, ours))) == {plain, array, het}
    assert slurm.unfinished(dict.fromkeys(asked, theirs)) == ()
    assert slurm.unfinished({plain: theirs, array: ours}) == (array,)
    # The first elements are records of their own now.
    cluster.run("scancel", f"{array}_0")
    assert slurm.unfinished({array: ours}) == (array,)
    slurm.cancel_many(slurm.unfinished(dict.fromkeys(asked, ours)))
    cluster.wait("all have ended", lambda: not slurm.unfinished(dict.fromkeys(asked, ours)))
