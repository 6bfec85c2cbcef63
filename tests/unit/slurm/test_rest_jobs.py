"""Jobs as slurmrestd tells of them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

import pytest

from airflow_provider_soperator.slurm.errors import SlurmError, UnknownJob
from airflow_provider_soperator.slurm.files import JobFolder, WorkingFolder
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    HoldJobs,
    ListJobs,
    ListUsage,
    ReleaseJobs,
    Request,
    RequeueJobs,
    UpdateJob,
)
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, Site, Unsupported, steps
from airflow_provider_soperator.slurm.states import JobState


def answered(request: Request[Any], *jobs: dict[str, Any], user: str = "") -> Any:
    """What a request makes of one answer with these jobs."""
    calls = steps(request, Site(version=43, user=user))
    next(calls)
    try:
        calls.send(RestAnswer(200, {"jobs": jobs}))
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks more")


def test_a_job_of_the_queue_that_cannot_be_read_is_marked() -> None:
    said = {
        "job_id": 7, "array_job_id": None, "array_task_string": "", "het_job_id": None, "name": "fit",
        "user_name": "alice", "partition": "main", "job_state": ["RUNNING"],
    }  # fmt: skip
    [job] = answered(ListJobs(ids=(JobId(7),)), said)
    assert isinstance(job, Job)
    assert (job.id, job.name, job.user) == (JobId(7), "fit", "alice")
    assert "standard_output" in job.unreadable


def test_a_job_of_accounting_that_cannot_be_read_is_marked() -> None:
    said = {"job_id": 7, "name": "fit", "array": {"job_id": 0}, "het": {"job_id": 0}, "time": {}}
    [job] = answered(Accounting(ids=(JobId(7),)), said)
    assert isinstance(job, AccountingJob)
    assert (job.id, job.name) == (JobId(7), "fit")
    assert "state" in job.unreadable


def test_root_is_known_as_the_one_who_cancelled_a_job() -> None:
    times = dict.fromkeys(("submission", "eligible", "start", "end", "elapsed", "limit"), 0)
    said = {"job_id": 7, "name": "fit", "array": {"job_id": 0}, "het": {"job_id": 0}, "time": times, "tres": {}}
    ended = {
        ("CANCELLED", "root"): "CANCELLED by 0", ("CANCELLED", "ann"): "CANCELLED", ("CANCELLED", ""): "CANCELLED",
        ("TIMEOUT", "root"): "TIMEOUT",
    }  # fmt: skip
    for (state, user), text in ended.items():
        [job] = answered(Accounting(ids=(JobId(7),)), said | {"state": {"current": [state]}, "kill_request_user": user})
        expected = JobState.parse(text)
        assert (job.state, job.state.cancelled_by) == (expected, expected.cancelled_by)


@pytest.mark.parametrize(
    ("seconds", "microseconds", "told"),
    [(30, 250_999, timedelta(seconds=30.25)), (0, 2_000_000, timedelta(seconds=2)), (7200, 5000, timedelta(hours=2))],
)
def test_what_a_step_has_used_is_what_sacct_prints(seconds: int, microseconds: int, told: timedelta) -> None:
    times = dict.fromkeys(("submission", "eligible", "start", "end", "elapsed", "limit"), 0)
    memory = {"type": "mem", "name": "", "count": 1 << 20}
    step = {
        "step": {"id": "7.batch", "name": "batch"}, "state": ["COMPLETED"], "exit_code": {},
        "time": {**times, "total": {"seconds": seconds, "microseconds": microseconds}},
        "tres": {"requested": {"max": [memory], "total": [{**memory, "count": 3 << 20}]}, "allocated": []},
    }  # fmt: skip
    said = {
        "job_id": 7, "name": "fit", "array": {"job_id": 0}, "het": {"job_id": 0}, "state": {"current": ["COMPLETED"]},
        "time": times, "tres": {"allocated": []}, "steps": [step],
    }  # fmt: skip
    [job] = answered(Accounting(ids=(JobId(7),), steps=True), said)
    first, last = answered(ListUsage(everyone=True, since=datetime.now(timezone.utc)), said, said)
    assert [first.steps[0].cpu_time, last.steps[0].cpu_time, last.earlier_runs] == [told, told, ()]
    assert (job.steps[0].cpu_time, job.steps[0].max_rss, job.steps[0].total_rss) == (told, 1 << 20, 3 << 20)


def asked(request: Request[Any], answers: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The calls that a request makes, each with its path and body; the answers come in turn."""
    made = []
    calls = steps(request, Site(version=45))
    with suppress(StopIteration):
        call = next(calls)
        for answer in answers:
            made.append((f"{call.method} {call.path}", call.body))
            call = calls.send(RestAnswer(200, answer))
    return made


def of_het(number: int, offset: int) -> dict[str, Any]:
    het = {"set": True, "infinite": False}
    return {
        "job_id": number, "array_job_id": None, "array_task_string": "",
        "het_job_id": het | {"number": 7}, "het_job_offset": het | {"number": offset},
    }  # fmt: skip


def test_a_part_of_a_heterogeneous_job_is_changed_by_its_own_number() -> None:
    parts = {"jobs": [of_het(7, 0), of_het(8, 1)]}
    change = {"comment": "x"}
    for request, told in (
        (UpdateJob(JobId(7, part=1), {"Comment": "x"}), [("POST slurm/job/8", change)]),
        (UpdateJob(JobId(7), {"Comment": "x"}), [("POST slurm/job/7", change), ("POST slurm/job/8", change)]),
        (HoldJobs((JobId(7, part=1),)), [("POST slurm/job/8", {"hold": True})]),
    ):
        assert asked(request, [parts, {}, {}][: len(told) + 1])[1:] == told
    with pytest.raises(UnknownJob):
        asked(UpdateJob(JobId(7, part=2), {"Comment": "x"}), [parts])


def test_all_waiting_elements_of_an_array_are_changed() -> None:
    array = {"array_job_id": 7, "array_task_string": "2-9", "het_job_id": None, "job_state": ["PENDING"]}
    waits = [array | {"job_id": 7, "array_task_id": None}, array | {"job_id": 8, "array_task_id": 0}]
    runs = array | {"job_id": 9, "array_task_id": 1, "job_state": ["RUNNING"]}
    told = [(f"POST slurm/job/{number}", {"hold": False}) for number in (7, 8)]
    assert asked(ReleaseJobs((JobId(7),)), [{"jobs": [*waits, runs]}, {}, {}])[1:] == told


def test_elements_that_cannot_be_requeued_are_named() -> None:
    outcomes = [
        {"error": "No error", "error_code": 0},
        {"error": "Requested operation is presently disabled", "error_code": 2015},
    ]
    request = RequeueJobs((JobId(7, element=1), JobId(8, element=2)))
    assert asked(request, [{"status": [outcomes[:1], outcomes[:1]]}])
    with pytest.raises(SlurmError, match="presently disabled"):
        asked(request, [{"status": [outcomes[:1], outcomes[1:]]}])


def queued(number: int, user: str, uid: int) -> dict[str, Any]:
    """A job of a user, whom slurmrestd may not know by name."""
    return {
        "job_id": number, "array_job_id": None, "array_task_string": "", "het_job_id": None, "job_state": ["PENDING"],
        "name": "fit", "user_name": user, "user_id": uid,
    }  # fmt: skip


def test_jobs_of_users_whom_slurmrestd_does_not_know_are_not_left_out() -> None:
    jobs = [queued(7, "", 1001), queued(8, "alice", 1002), queued(9, "bob", 1003)]
    assert [job.id.job for job in answered(ListJobs(user="alice"), *jobs[1:])] == [8]
    # It may be hers, and a queue without it would be no answer.
    with pytest.raises(Unsupported, match="cannot tell whose jobs these are"):
        answered(ListJobs(user="alice"), *jobs)


def test_where_slurmrestd_knows_the_user_a_job_without_a_name_is_anothers() -> None:
    jobs = [queued(7, "", 1001), queued(8, "alice", 1002), queued(9, "bob", 1003)]
    assert [job.id.job for job in answered(ListJobs(mine=True), *jobs, user="bob")] == [9]


def test_ones_own_jobs_are_told_by_the_number_of_a_job_of_ones_own() -> None:
    """The host of slurmrestd knows neither bob (1003) nor the colleague whose job has the same name (1001)."""
    queue = {"jobs": [queued(7, "", 1001), queued(9, "", 1003)]}
    site = Site(version=45, user="bob", home="/home/bob")

    def look(request: ListJobs, *answers: dict[str, Any]) -> list[int]:
        calls = steps(request, site)
        next(calls)
        try:
            for answer in answers:
                calls.send(RestAnswer(200, answer))
        except StopIteration as end:
            return [job.id.job for job in end.value]
        raise AssertionError("it asks more")

    # A job that has been submitted is known by its id.
    assert look(ListJobs(mine=True, ids=(JobId(9),)), {"jobs": [queued(9, "", 1003)]}) == [9]
    asked_first: list[dict[str, Any]] = [queue, {"job_id": 10}, {"jobs": [queued(10, "", 1003)]}, {}]
    assert look(ListJobs(mine=True, name_suffixes=("fit",)), *asked_first) == [9]
    # Its number is known from here on.
    assert look(ListJobs(mine=True, name_suffixes=("fit",)), queue) == [9]
    assert look(ListJobs(mine=True, ids=(JobId(7),)), {"jobs": [queued(7, "", 1001)]}) == []


def test_the_job_that_tells_ones_number_starts_later_and_is_cancelled() -> None:
    calls = steps(ListJobs(mine=True), Site(version=45, user="bob", home="/home/bob"))
    next(calls)
    submitted = calls.send(RestAnswer(200, {"jobs": [queued(7, "", 1001)]}))
    assert submitted.body is not None
    assert (submitted.path, submitted.body["job"]["begin_time"]) == ("slurm/job/submit", "now+1hour")
    assert calls.send(RestAnswer(200, {"job_id": 10})).path == "slurm/job/10"
    cancelled = calls.send(RestAnswer(200, {"jobs": [queued(10, "", 1003)]}))
    assert cancelled.body is not None
    assert (cancelled.method, cancelled.body["jobs"]) == ("DELETE", ["10"])


def test_without_a_number_no_job_of_that_name_is_taken_for_ones_own() -> None:
    calls = steps(ListJobs(mine=True), Site(version=45, user="bob", home="/home/bob"))
    next(calls)
    calls.send(RestAnswer(200, {"jobs": [queued(7, "", 1001)]}))
    refusal = {"error_number": 2012, "error": "No partition specified or system default partition"}
    with pytest.raises(Unsupported, match=r"cannot tell whose jobs these are.*No partition specified"):
        calls.send(RestAnswer(500, {"errors": [refusal]}))


@pytest.mark.parametrize(
    ("chdir", "folder"), [(None, "/home/ann"), ("runs/1", "/home/ann/runs/1"), ("/shared", "/shared")]
)
def test_a_job_works_in_the_home_of_its_user_or_below_it(chdir: str | None, folder: str) -> None:
    job = BatchJob(command="true", chdir=chdir)
    assert job.to_payload("v0.0.45", "ann", "/home/ann")["job"]["current_working_directory"] == folder


def test_jobs_run_in_the_home_of_their_user_where_files_are_those_of_another() -> None:
    site = Site(version=45, user="bob", home="/home/bob")
    with pytest.raises(StopIteration) as end:
        next(steps(JobFolder(), site))
    assert end.value.value == PurePosixPath("/home/bob")
    # Without a way to files there is nothing to copy.
    with pytest.raises(Unsupported, match="reach the cluster's files"):
        next(steps(WorkingFolder(), site))
