"""What a real Slurm answers about jobs, on both versions: read whole, and told apart."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.slurm import errors
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.job_reports import usage_of
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    HoldJobs,
    JobDetail,
    ListJobs,
    ListUsage,
    ReleaseJobs,
    RequeueJobs,
    UpdateJob,
)
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase
from tests.integration.answers import HOSTILE, accounted, ask, sbatch, submit, the_job
from tests.integration.cluster import Cluster
from tests.submissions import Submit

# What Slurm answers differs from one version to the next.
pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("jobs")]


def test_hostile_names_come_back_as_they_were_sent(cluster: Cluster) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    names = (HOSTILE, "ü" * 120, "plain-answers")
    sent = {sbatch(cluster, f"--job-name={name}", f"--comment={HOSTILE}"): name for name in names}
    jobs = {job.id: job for job in ask(cluster, ListJobs(ids=tuple(sent), mine=True))}
    assert {job_id: job.name for job_id, job in jobs.items()} == sent
    assert {job.comment for job in jobs.values()} == {HOSTILE}
    assert all(job.submitted and job.submitted > before for job in jobs.values())
    for job_id, name in sent.items():
        assert [job.id for job in ask(cluster, ListJobs(names=(name,), mine=True))] == [job_id]
    ask(cluster, CancelJobs(ids=tuple(sent)))
    by_id = {job.id: job for job in accounted(cluster, ids=tuple(sent))}
    assert {job_id: job.name for job_id, job in by_id.items()} == {
        job_id: name_in_accounting(name) for job_id, name in sent.items()
    }
    assert all(job.state.base is JobBase.CANCELLED and job.state.cancelled_by == 0 for job in by_id.values())
    for job_id, name in sent.items():
        assert job_id in {job.id for job in ask(cluster, Accounting(names=(name,), since=before))}


def test_bytes_that_are_no_text_break_nothing(cluster: Cluster) -> None:
    job = the_job(cluster, sbatch(cluster, b"--job-name=a\xff\n\xfeb"))
    assert job.name == "a\\xff\n\\xfeb"
    ask(cluster, CancelJobs(ids=(job.id,)))
    (gone,) = accounted(cluster, ids=(job.id,))
    # slurmctld itself has put question marks in their place.
    assert gone.name == "a?\n?b"


def test_elements_of_an_array_wait_as_one_and_end_one_by_one(cluster: Cluster) -> None:
    array = submit(cluster, array="0-8:4%2", hold=True, name="fan")
    waiting = the_job(cluster, array)
    assert list(waiting.id.indices()) == [0, 4, 8]
    assert waiting.is_held
    element = JobId(array.job, element=4)
    assert the_job(cluster, element).id.covers(element)
    # In the notation of squeue, which scancel and scontrol do not read.
    ask(cluster, HoldJobs((waiting.id,)))
    ask(cluster, ReleaseJobs((waiting.id,)))
    ended = cluster.wait("all have ended", lambda: len(found := accounted(cluster, ids=(array,))) == 3 and found)
    assert {job.id.element for job in ended} == {0, 4, 8}
    assert all(job.state.succeeded for job in ended)
    (one,) = ask(cluster, Accounting(ids=(element,)))
    assert one.id == element


def test_a_long_array_of_odd_elements_is_not_cut_short(cluster: Cluster) -> None:
    odd = [n for n in range(300) if n % 7 in (0, 3)]
    array = submit(cluster, array=",".join(map(str, odd)), hold=True)
    waiting = the_job(cluster, array)
    assert list(waiting.id.indices()) == odd
    ask(cluster, CancelJobs(ids=(waiting.id,)))
    assert all(job.state.base is JobBase.CANCELLED for job in ask(cluster, ListJobs(ids=(array,))))


def test_parts_of_a_heterogeneous_job(cluster: Cluster) -> None:
    said = cluster.run(
        "sbatch", "--parsable", "--hold", "--job-name=first", "--output=/root/%j.out", "--wrap=true",
        ":", "--job-name=second",
    )  # fmt: skip
    whole = JobId.parse(said)
    parts = sorted(ask(cluster, ListJobs(ids=(whole,))), key=lambda job: job.id)
    assert [(job.id.part, job.name) for job in parts] == [(0, "first"), (1, "second")]
    assert parts[1].raw_id == whole.job + 1
    with pytest.raises(errors.WholeJobOnly):
        ask(cluster, CancelJobs(ids=(parts[1].id,)))
    for part in parts:
        with pytest.raises(errors.UnknownJob):
            ask(cluster, RequeueJobs((part.id,)))
    with pytest.raises(errors.InvalidStateTransition):
        ask(cluster, RequeueJobs((whole,)))
    ask(cluster, CancelJobs(ids=(whole,)))
    ended = cluster.wait("both are cancelled", lambda: _all_finished(ask(cluster, ListJobs(ids=(whole,)))))
    assert len(ended) == 2


def _all_finished(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    return jobs if jobs and all(job.state.is_finished for job in jobs) else ()


def test_what_accounting_finds_without_an_id(cluster: Cluster) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    name = f"seek-{before.timestamp()}"
    held, tomorrow = submit(cluster, name=name, hold=True), submit(cluster, name=name, begin=timedelta(days=2))
    dependent = submit(cluster, name=name, extra_args=[f"--dependency=afterok:{held}"])
    ran = submit(cluster, name=name)
    every = (held, tomorrow, dependent, ran)
    assert {job.id for job in ask(cluster, ListJobs(names=(name,)))} == set(every)
    cluster.wait("one has run", lambda: the_job(cluster, ran).state.is_finished)
    found = cluster.wait("it is accounted for", lambda: ask(cluster, Accounting(names=(name,), since=before)))
    # The others have never been eligible: only the queue finds them by name.
    assert [job.id for job in found] == [ran]
    ask(cluster, CancelJobs(ids=every))
    accounted(cluster, ids=every)
    assert {job.id for job in ask(cluster, Accounting(names=(name,), since=before))} == set(every)
    assert ask(cluster, Accounting(names=(name,), since=datetime.now(timezone.utc) + timedelta(hours=1))) == ()


def test_runs_before_a_requeue_are_counted_and_kept(cluster: Cluster) -> None:
    script = "touch /root/begun-$SLURM_JOB_ID; test $SLURM_RESTART_COUNT || sleep 300"
    job = ask(cluster, Submit(BatchJob(command=script, output="/root/%j.out", requeue=True)))
    cluster.wait("its script runs", lambda: cluster.try_run("test", "-e", f"/root/begun-{job}").returncode == 0)
    ask(cluster, RequeueJobs((job,), hold=True))
    held = cluster.wait("it waits again", lambda: (found := the_job(cluster, job)).state.is_pending and found)
    assert held.restarts == 1
    assert held.is_held
    assert held.reason
    # It would wait two minutes before its second run.
    ask(cluster, UpdateJob(job, {"StartTime": "now"}))
    ask(cluster, ReleaseJobs((job,)))
    (ended,) = cluster.wait(
        "it has run twice",
        lambda: (found := accounted(cluster, ids=(job,), steps=True)) and found[0].restarts and found,
    )
    assert ended.restarts == 1
    assert [run.state.is_finished for run in ended.earlier_runs] == [False]
    assert [step.id.step for step in ended.steps] == ["batch"]
    assert [step.id.step for step in ended.earlier_runs[0].steps] == ["batch"]


def test_how_jobs_end(cluster: Cluster) -> None:
    bodies = {"exit 3": "exit code 3", "kill -9 $$": "killed by SIGKILL", "sh -c 'kill -11 $$'": "SIGSEGV"}
    jobs = {ask(cluster, Submit(BatchJob(command=body, output="/root/%j.out"))): said for body, said in bodies.items()}
    ended = {job.id: job for job in accounted(cluster, ids=tuple(jobs))}

    def completed() -> dict[JobId, Job] | None:
        found = {job.id: job for job in ask(cluster, ListJobs(ids=tuple(jobs)))}
        return found if all(job.state.base for job in found.values()) else None

    # While slurmctld cleans up after a job, a step's end may be all that it shows.
    in_queue = cluster.wait("the queue shows how they ended", completed)
    assert set(ended) == set(in_queue) == set(jobs)
    for job_id, said in jobs.items():
        assert ended[job_id].state.base is in_queue[job_id].state.base is JobBase.FAILED
        assert said in str(in_queue[job_id].exit_code)
    assert [job.exit_code.code for job in in_queue.values() if job.exit_code.code > 128] == [139]
    # sacct used to hide that it was a signal.
    segfault = 139 - 128 * (cluster.settings.slurm == "24.11")
    assert {job.exit_code.code for job in ended.values()} == {3, 0, segfault}


def test_fields_of_a_job_are_changed_and_read(cluster: Cluster) -> None:
    job = submit(cluster, hold=True, time_limit=timedelta(hours=2), gpus_per_node=2)
    ask(cluster, UpdateJob(job, {"Comment": HOSTILE, "TimeLimit": "7", "Name": "--x=y"}))
    found = the_job(cluster, job)
    assert (found.comment, found.time_limit, found.name) == (HOSTILE, timedelta(minutes=7), "--x=y")
    assert "gres/gpu=2" in found.tres
    assert f"JobId={job}" in ask(cluster, JobDetail(job))


def test_cancelling_jobs_that_are_gone_is_no_error(cluster: Cluster) -> None:
    job = submit(cluster)
    accounted(cluster, ids=(job,))
    ask(cluster, CancelJobs(ids=(job, JobId(999_999), JobId(999_998))))
    ask(cluster, CancelJobs(ids=(JobId(999_999),)))
    assert ask(cluster, ListJobs(ids=(JobId(999_999),))) == ()
    assert ask(cluster, ListJobs(ids=(JobId(999_999), JobId(999_998)))) == ()
    assert ask(cluster, Accounting(ids=(JobId(999_999),))) == ()


def test_usage_is_of_each_run_of_a_job_with_what_it_has_computed(cluster: Cluster) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    name = f"used-{before.timestamp()}"
    burns = "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do :; done"
    ran = ask(cluster, Submit(BatchJob(command=burns, output="/root/%j.out", name=name, cpus_per_task=2)))
    accounted(cluster, ids=(ran,))
    [used] = [one for one in ask(cluster, ListUsage(everyone=True, since=before)) if one.name == name]
    assert (used.id, used.user, used.state.succeeded) == (ran, "root", True)
    assert used.started
    assert used.elapsed is not None
    assert usage_of(used).cpu_seconds
