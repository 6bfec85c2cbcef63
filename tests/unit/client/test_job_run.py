"""A job from its submission to its end, with a Slurm that forgets."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun, Printed
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.files import ReadPieces
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, JobStatus
from airflow_provider_soperator.slurm.requests import CancelJobs
from airflow_provider_soperator.slurm.requests.submission import HELD, SubmitOnce, Together
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.unit.client.tracking import Log, Slurm, past, queued, run_without_waiting

FIRST, SECOND, THEIRS = (SubmissionKey(letter * 12) for letter in "abz")


def job_run(slurm: Slurm, *keys: SubmissionKey, job: BatchJob | None = None, poll_interval: float = 10.0) -> JobRun:
    job = job or BatchJob(command="train", name="train")
    return JobRun(AsyncSlurmClient(slurm), job, keys or [FIRST], poll_interval=poll_interval, show_output=False)


async def end_of(run: JobRun) -> JobStatus:
    async for news in run.follow():
        assert not isinstance(news, Printed)
        status = news
    return status


@pytest.mark.parametrize("script", [None, "#!/bin/sh\n#SBATCH -M west,soperator\n"])
def test_a_job_for_another_cluster_is_not_submitted_there(script: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.config = ClusterConfig(version="24.11", cluster="soperator")
    job = BatchJob(script=script) if script else BatchJob(command="true", clusters="west")
    with pytest.raises(InvalidJob, match="clusters: it would not be found again, as the connection is to soperator"):
        run_without_waiting(job_run(slurm, job=job).submit(), monkeypatch)
    assert slurm.queue == []
    own = BatchJob(command="true", clusters=["soperator"])
    assert run_without_waiting(job_run(slurm, job=own).submit(), monkeypatch).id


ON_CLUSTER = BatchJob(remote_script="/jobs/fit.sh", name="fit")


@pytest.mark.parametrize("line", ["-W", "--wait", "--parsable"])
def test_options_in_a_script_on_the_cluster_that_would_hide_the_job_are_refused(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/jobs/fit.sh"] = f"#!/bin/sh\n#SBATCH {line}\nfit\n".encode()
    run = job_run(slurm, job=ON_CLUSTER)
    run_without_waiting(run.read_lines(), monkeypatch)
    with pytest.raises(InvalidJob, match=r"script: line 2: --\w+ cannot be used: "):
        run_without_waiting(run.submit(), monkeypatch)
    assert slurm.queue == []


def test_tasks_with_one_script_on_the_cluster_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/jobs/fit.sh"] = b"#!/bin/sh\n#SBATCH --error=fit.err\n" + b"fit\n" * 100_000

    async def read() -> list[BatchJob]:
        client = AsyncSlurmClient(slurm)
        return await asyncio.gather(*(client.with_lines(ON_CLUSTER) for _ in range(1000)))

    jobs = run_without_waiting(read(), monkeypatch)
    assert {(job.error, job.remote_lines) for job in jobs} == {("fit.err", "#!/bin/sh\n#SBATCH --error=fit.err\n")}
    assert slurm.reads == 1


@pytest.mark.parametrize(
    ("script", "there", "read"),
    [
        ("fit.sh", {"/root/jobs/fit.sh": b"#SBATCH -e chdir", "/root/fit.sh": b"#SBATCH -e home"}, "home"),
        ("fit.sh", {"/root/jobs/fit.sh": b"#SBATCH -e chdir"}, None),
        ("jobs/fit.sh", {"/root/jobs/fit.sh": b"#SBATCH -e home"}, "home"),
        ("./fit.sh", {"/root/jobs/fit.sh": b"#SBATCH -e chdir", "/root/fit.sh": b"#SBATCH -e home"}, "home"),
    ],
)
def test_a_script_on_the_cluster_is_looked_for_as_sbatch_does(
    script: str, there: dict[str, bytes], read: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])
    slurm.files |= {path: b"#!/bin/sh\n" + lines for path, lines in there.items()}
    job = BatchJob(remote_script=script, chdir="jobs", name="fit")
    assert run_without_waiting(AsyncSlurmClient(slurm).with_lines(job), monkeypatch).error == read
    assert slurm.reads == 1


@pytest.mark.parametrize("text", [None, b"", b"#!/bin/sh\n#SBATCH --of-a-plugin 7\n"])
def test_a_script_on_the_cluster_that_cannot_be_read_is_left_to_sbatch(
    text: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])
    if text is not None:
        slurm.files["/jobs/fit.sh"] = text
    run = job_run(slurm, job=ON_CLUSTER)
    run_without_waiting(run.read_lines(), monkeypatch)
    assert run.job == ON_CLUSTER


# ------------------------------------------------------------------------ a number that Slurm has given to another job


@pytest.mark.parametrize("accounting", [None, []])
def test_the_end_of_another_job_that_was_given_the_number_is_not_the_end_of_this_one(
    accounting: list[AccountingJob] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=accounting)

    def later() -> None:
        # slurmctld is killed, and comes back without the job.
        if time.monotonic() > 1010:
            slurm.queue = [queued("7", "COMPLETED", name=THEIRS.name("train"))]

    slurm.before_look = later
    status = run_without_waiting(end_of(job_run(slurm)), monkeypatch)
    assert status.lost == f"Slurm lost it and reused its id for a job named {THEIRS.name('train')}"
    assert not status.succeeded


def test_a_job_of_an_earlier_try_is_known_by_the_key_of_that_try(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(queued("9", "COMPLETED", name=FIRST.name("train")), accounting=[])
    assert run_without_waiting(end_of(job_run(slurm, FIRST, SECOND)), monkeypatch).id == JobId(9)
    # Even if it was called otherwise then.
    renamed = BatchJob(command="train", name="fit")
    assert run_without_waiting(end_of(job_run(slurm, FIRST, job=renamed)), monkeypatch).id == JobId(9)


@pytest.mark.parametrize(
    ("there", "cancelled"),
    [
        ([("7", FIRST)], True),
        ([("7_[1-3]", FIRST), ("7_0", FIRST)], True),
        ([("7", THEIRS)], False),
        ([("7_[1-3]", THEIRS), ("7_0", THEIRS)], False),
        # A further component of a heterogeneous job has a name of its own.
        ([("7+0", FIRST), ("7+1", None)], True),
        ([("7+0", THEIRS), ("7+1", None)], False),
        ([], False),
    ],
)
def test_only_ones_own_job_is_cancelled(
    there: list[tuple[str, SubmissionKey | None]], cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])

    async def submit_and_cancel() -> None:
        run = job_run(slurm)
        await run.submit()
        slurm.queue = [queued(job, "PENDING", name=key.name("train") if key else "own") for job, key in there]
        await run.cancel()

    run_without_waiting(submit_and_cancel(), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(7),))] * cancelled


def test_a_job_of_another_process_is_found_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(queued("9", "RUNNING", name=FIRST.name("train")), accounting=[])
    run_without_waiting(job_run(slurm, FIRST, SECOND).cancel(), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(9),))]


def test_jobs_are_cancelled_by_their_keys_alone_where_nobody_can_tell_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(queued("9", "RUNNING", name=FIRST.name("train")), queued("8", "RUNNING", name=THEIRS.name("train")))

    def before() -> None:
        if getattr(slurm.asked[-1], "mine", False):
            raise NotSupported("the token names no user")

    slurm.before = before
    run_without_waiting(job_run(slurm).cancel(), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(9),))]


def test_what_accounting_has_of_an_earlier_try_is_not_read_off_another_job_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(
        queued("9", "RUNNING", name=THEIRS.name("train")), accounting=[past("9", "FAILED", name=FIRST.name("train"))]
    )
    submitted = run_without_waiting(job_run(slurm, FIRST, SECOND).submit(), monkeypatch)
    assert (submitted.id, submitted.adopted) == (JobId(7), False)


# ------------------------------------------------------------------------------------------- arrays without accounting

ARRAYS = [
    BatchJob(command="train", name="train", array="0-3%2"),
    BatchJob(script="#!/bin/sh\n#SBATCH --array=0-3\ntrain\n", name="train"),
]


@pytest.mark.parametrize("job", ARRAYS)
def test_elements_that_the_queue_has_forgotten_before_the_first_look_are_missed(
    job: BatchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(queued("7_3", "RUNNING", name=FIRST.name("train")))

    def later() -> None:
        if time.monotonic() > 5000:
            slurm.queue = [queued("7_3", "COMPLETED", name=FIRST.name("train"))]

    slurm.before_look = later
    status = run_without_waiting(end_of(job_run(slurm, FIRST, SECOND, job=job)), monkeypatch)
    # It is not given up before the others have ended.
    assert {str(part.id): str(part.state) for part in status.parts} == {"7_3": "COMPLETED"}
    assert status.lost == "elements 0-2 are not in the queue, and without accounting their ends are unknown"
    assert not status.succeeded


def test_a_try_goes_on_with_its_own_job_when_the_queue_has_forgotten_how_the_earlier_one_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Element 7_0 has failed. Another process has submitted the job of the second try then.
    earlier = [queued(f"7_{index}", "COMPLETED", name=FIRST.name("train")) for index in (1, 2, 3)]
    slurm = Slurm(*earlier, queued("8_[0-3]", "PENDING", name=SECOND.name("train")))
    slurm.next_id = 9
    submitted = run_without_waiting(job_run(slurm, FIRST, SECOND, job=ARRAYS[0]).submit(), monkeypatch)
    assert (submitted.id, submitted.adopted, submitted.key) == (JobId(8), True, SECOND)


def test_a_try_goes_on_with_its_own_job_while_accounting_lags_about_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The earlier job has failed and left the queue.
    slurm = Slurm(
        queued("8", "RUNNING", name=SECOND.name("train")), accounting=[past("7", "RUNNING", name=FIRST.name("train"))]
    )
    submitted = run_without_waiting(job_run(slurm, FIRST, SECOND).submit(), monkeypatch)
    assert (submitted.id, submitted.adopted, slurm.calls) == (JobId(8), True, 0)


def test_a_try_does_not_go_back_to_an_earlier_job_once_its_own_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = [queued(f"7_{index}", "COMPLETED", name=FIRST.name("train")) for index in (1, 2, 3)]
    slurm = Slurm(*earlier, *(queued(f"8_{index}", "FAILED", name=SECOND.name("train")) for index in range(4)))
    slurm.next_id = 9
    submitted = run_without_waiting(job_run(slurm, FIRST, SECOND, job=ARRAYS[0]).submit(), monkeypatch)
    assert (submitted.id, submitted.adopted, slurm.calls) == (JobId(8), True, 0)


@pytest.mark.parametrize("job", ARRAYS)
def test_an_array_whose_elements_are_all_seen_succeeds_without_accounting(
    job: BatchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm()

    def later() -> None:
        # The queue forgets the elements one by one.
        ages = {index: time.monotonic() - 1500 - 200 * index for index in range(4)}
        states = {index: "RUNNING" if age < 0 else "COMPLETED" for index, age in ages.items() if age < 300}
        slurm.queue = [queued(f"7_{index}", state, name=FIRST.name("train")) for index, state in states.items()]

    slurm.before_look = later
    assert run_without_waiting(end_of(job_run(slurm, FIRST, SECOND, job=job)), monkeypatch).succeeded


# ------------------------------------------------------------------------------------------------- how often it asks


def test_without_accounting_the_end_of_a_job_is_seen_before_the_queue_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm()

    def later() -> None:
        # It ends right after a look, hours after its start.
        since_end = time.monotonic() - next((at for at in slurm.asked_at if at > 20_000), math.inf)
        state = "RUNNING" if since_end < 0 else "COMPLETED" if since_end < 300 else ""
        slurm.queue = [queued("7", state, name=FIRST.name("train"))] * bool(state)

    slurm.before_look = later
    assert run_without_waiting(end_of(job_run(slurm, poll_interval=900)), monkeypatch).succeeded


def test_once_accounting_has_answered_polls_are_as_rare_as_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    # As over a slurmrestd that cannot tell how the cluster is set up.
    slurm = Slurm(accounting=[])
    slurm.config = NotSupported("it cannot tell")
    array = [queued("7_0", "COMPLETED", name=FIRST.name("train")), queued("7_1", "RUNNING", name=FIRST.name("train"))]

    def later() -> None:
        slurm.queue = array if time.monotonic() < 20_000 else [replace(job, state=array[0].state) for job in array]

    slurm.before_look = later
    assert run_without_waiting(end_of(job_run(slurm, poll_interval=900)), monkeypatch).succeeded
    assert slurm.asked_at[-1] - slurm.asked_at[-2] == pytest.approx(900, abs=1)


@pytest.mark.parametrize("comment", [HELD, "mine"])
def test_a_job_that_slurmctld_has_forgotten_to_release_is_released(
    comment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, log = Slurm(accounting=[]), Log()
    held = queued("7", "PENDING", name=FIRST.name("train"), comment=comment, priority=0, reason="JobHeldUser")
    slurm.queue = [held]

    def later() -> None:
        released = any(isinstance(one, SubmitOnce) and one.together is Together.START for one in slurm.asked)
        if released or time.monotonic() > 5000:
            slurm.queue = [replace(held, state=JobState.parse("COMPLETED"), comment="mine")]

    slurm.before = later
    run = JobRun(AsyncSlurmClient(slurm), BatchJob(command="train", name="train"), [FIRST], log=log)
    run_without_waiting(end_of(run), monkeypatch)
    [*_, last] = slurm.asked_at
    if comment == HELD:
        assert last < 1060
        assert log.lines == ["Job 7 was held until its submission is complete, which it is: it is released"]
    else:
        assert last > 5000, "its user holds it"
        assert log.lines == []
    assert slurm.calls == 0


# -------------------------------------------------------------------------------------------------------- its output


def printing(slurm: Slurm, end: float) -> None:
    """A job that starts at 1010 and prints a line a second until its end."""

    def later() -> None:
        now = time.monotonic()
        state = "PENDING" if now < 1010 else "RUNNING" if now < end else "COMPLETED"
        slurm.queue = [queued("7", state, name=FIRST.name("train"), stdout="/out")]
        lines = range(max(0, int(min(now, end)) - 1010))
        slurm.files = {"/out": "".join(f"line {number}\n" for number in lines).encode()}

    slurm.before = later


async def printed(slurm: Slurm, pause: float, **options: Any) -> list[str]:
    """What is printed, for a log that takes its time for each item."""
    lines, job = [], BatchJob(command="train", name="train", **options)
    async for news in JobRun(AsyncSlurmClient(slurm), job, [FIRST]).follow():
        lines += news.lines if isinstance(news, Printed) else []
        await asyncio.sleep(pause)
    # Nobody reads files then.
    await asyncio.sleep(300)
    return lines


@pytest.mark.parametrize("pause", [0, 0.5, 3, 20])
@pytest.mark.parametrize("end", [1010, 1013, 1047.5, 1200])
def test_each_line_is_shown_once_and_in_order(end: float, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    printing(slurm, end)
    lines = run_without_waiting(printed(slurm, pause), monkeypatch)
    assert lines == [f"line {number}" for number in range(int(end) - 1010)]


@pytest.mark.parametrize("end", [1050, 1060, 1200])
def test_what_was_read_is_shown_even_if_files_cannot_be_read_any_more(
    end: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, read = Slurm(accounting=[]), b""
    printing(slurm, end)
    told = slurm.before

    def until_noon() -> None:
        nonlocal read
        told()
        if isinstance(slurm.asked[-1], ReadPieces):
            if time.monotonic() > 1048:
                raise NotSupported("there is no way to files any more")
            read = slurm.files["/out"]

    slurm.before = until_noon
    *lines, note = run_without_waiting(printed(slurm, pause=15), monkeypatch)
    assert lines == read.decode().splitlines()
    assert note.startswith("(Not shown of /out: ")


@pytest.mark.parametrize(
    ("options", "default", "kept"),
    [({}, "0", 0), ({"open_mode": "append"}, "0", 1), ({}, "1", 1), ({"open_mode": "t"}, "1", 0)],
)
def test_the_output_of_a_requeued_job_is_shown_from_its_beginning_unless_it_is_appended(
    options: Any, default: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, first, second = Slurm(accounting=[]), b"host w-0\n", b"host w-3\nstep 1\n"
    slurm.config = ClusterConfig(version="24.11", settings={"JobFileAppend": default})

    def later() -> None:
        runs = int(time.monotonic() > 1050)
        state = "RUNNING" if time.monotonic() < 1100 else "COMPLETED"
        slurm.queue = [queued("7", state, name=FIRST.name("train"), stdout="/out", restarts=runs)]
        slurm.files = {"/out": first * (kept or not runs) + second * runs}

    slurm.before = later
    lines = run_without_waiting(printed(slurm, 0, **options), monkeypatch)
    # What it has read before it learns of the requeue it cannot know to be of another run.
    assert [lines[0], *lines[-2:]] == ["host w-0", "host w-3", "step 1"]
    assert lines.count("host w-0") == lines.count("host w-3") == 1


def test_of_a_job_that_is_cancelled_while_it_waits_once_more_nothing_is_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(accounting=[])

    def later() -> None:
        now = time.monotonic()
        waits = "COMPLETING" if now < 1080 else "PENDING" if now < 1100 else "CANCELLED"
        state, restarts = ("RUNNING", 0) if now < 1050 else (waits, 1)
        slurm.queue = [queued("7", state, name=FIRST.name("train"), stdout="/out", restarts=restarts)]
        slurm.files = {"/out": b"one\n" + b"two\n" * (now > 1070)}

    slurm.before = later
    assert run_without_waiting(printed(slurm, 0), monkeypatch) == ["one", "two"]


def of_one_file(
    *states: tuple[float, str], files: list[tuple[float, bytes]], is_there: bool = False, **options: Any
) -> tuple[list[str], list[str]]:
    """What is logged, and the last lines, of a job whose file is not named after it; each holds until its moment.

    It may be there already, submitted by a process that has ended.
    """
    slurm = Slurm(*[queued("7", states[0][1], name=FIRST.name("train"))] * is_there, accounting=[])

    def later() -> None:
        now = time.monotonic()
        state = next(state for until, state in states if now < until)
        nodes = "" if state.startswith("PENDING") else "w-0"
        state, _, is_alone = state.partition(" ")
        record = queued(
            "7", state, name=FIRST.name("train"), stdout="fit.log", workdir="/root", nodelist="" if is_alone else nodes
        )
        slurm.queue = [record] * bool(slurm.calls or is_there)
        slurm.files = {"/root/fit.log": next(file for until, file in files if now < until)}

    slurm.before = later

    async def follow() -> tuple[list[str], list[str]]:
        lines, job = [], BatchJob(command="train", name="train", output="fit.log", **options)
        run = JobRun(AsyncSlurmClient(slurm), job, [FIRST])
        async for news in run.follow():
            if isinstance(news, Printed):
                lines += news.lines
            elif isinstance(news, JobStatus):
                end = news
        return lines, await run.last_lines(end)

    with pytest.MonkeyPatch.context() as patch:
        return run_without_waiting(follow(), patch)


EARLIER = b"yesterday: step 1\nyesterday: CUDA out of memory\n"
AS_LONG = b"today".ljust(len(EARLIER) - 1) + b"\n"
END = math.inf


def test_nor_as_that_of_elements_that_never_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {0: ("CANCELLED", ""), 1: ("FAILED", "w-0")}
    slurm = Slurm(
        *(
            queued(f"7_{n}", state, name=FIRST.name("train"), stdout="fit-%a.log", workdir="/root", nodelist=nodes)
            for n, (state, nodes) in ends.items()
        ),
        accounting=[],
    )
    slurm.files = {f"/root/fit-{element}.log": EARLIER for element in ends}

    async def shown() -> list[str]:
        run = JobRun(AsyncSlurmClient(slurm), BatchJob(command="train", name="train", array="0-1"), [FIRST])
        return [str(news.part) async for news in run.follow() if isinstance(news, Printed)]

    assert run_without_waiting(shown(), monkeypatch) == ["7_1"]


#: States before a job begins, and whether it is there at the first look.
BEFORE: list[tuple[list[tuple[float, str]], bool]] = [
    ([], False),
    *(([(1010, state)], is_there) for state in ("PENDING", "CONFIGURING") for is_there in (False, True)),
    ([(1010, "PENDING"), (1070, "CONFIGURING")], False),
]


@pytest.mark.parametrize(("before", "is_there"), BEFORE)
@pytest.mark.parametrize("today", [b"today: ok\n", b"today: step 1\n" * 10, AS_LONG])
def test_the_file_of_an_earlier_job_is_not_shown_as_that_of_this_one(
    today: bytes, before: list[tuple[float, str]], is_there: bool
) -> None:
    begun = before[-1][0] if before else 1000.0
    states = (*before, (begun + 60, "RUNNING"), (END, "COMPLETED"))
    lines, _ = of_one_file(*states, files=[(begun + 2, EARLIER), (END, today)], is_there=is_there)
    assert lines == today.decode().splitlines()


def test_a_job_that_ran_before_the_first_look_is_read_from_its_beginning() -> None:
    states = ((1060, "RUNNING"), (END, "FAILED"))
    lines, last = of_one_file(*states, files=[(END, b"one\ntwo\n")], is_there=True)
    assert (lines, last[1:]) == (["one", "two"], ["  one", "  two"])


@pytest.mark.parametrize(
    "states",
    [
        ((1050, "PENDING"), (END, "CANCELLED alone")),
        ((1010, "PENDING"), (1050, "CONFIGURING"), (END, "CANCELLED")),
        ((1050, "CONFIGURING"), (1060, "COMPLETING"), (END, "NODE_FAIL")),
    ],
)
@pytest.mark.parametrize("options", [{}, {"open_mode": "append"}])
def test_nor_as_that_of_a_job_that_never_ran(states: tuple[tuple[float, str], ...], options: dict[str, str]) -> None:
    assert of_one_file(*states, files=[(END, EARLIER)], **options) == ([], [])


@pytest.mark.parametrize(("before", "is_there"), BEFORE)
def test_of_a_file_that_jobs_append_to_only_what_this_one_appends_is_shown(
    before: list[tuple[float, str]], is_there: bool
) -> None:
    begun = before[-1][0] if before else 1000.0
    files = [(begun + 2, EARLIER), (begun + 40, EARLIER + b"one\n"), (END, EARLIER + b"one\ntwo\n")]
    states = (*before, (begun + 60, "RUNNING"), (END, "COMPLETED"))
    assert of_one_file(*states, files=files, is_there=is_there, open_mode="append")[0] == ["one", "two"]


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ([(1020, EARLIER), (1150, EARLIER + b"other\n"), (END, EARLIER + b"other\nmine\n")], {"open_mode": "append"}),
        # The node opens the file some seconds after the job is said to run.
        ([(1020, EARLIER), (1150, EARLIER + b"other\n"), (END, b"mine\n")], {}),
    ],
    ids=["append", "truncate"],
)
def test_nor_is_what_others_write_until_it_has_nodes(files: list[tuple[float, bytes]], options: dict[str, str]) -> None:
    states = ((1100, "PENDING"), (1130, "CONFIGURING"), (1200, "RUNNING"), (END, "FAILED"))
    lines, last = of_one_file(*states, files=files, **options)
    assert (lines, last[1:]) == (["mine"], ["  mine"])


def test_the_files_of_many_jobs_are_measured_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    slurm.files = {f"/fit-{number}": b"x" * number for number in range(100)}

    async def sizes() -> list[int]:
        client = AsyncSlurmClient(slurm)
        return await asyncio.gather(*map(client.size, [*slurm.files, "/none"]))

    assert run_without_waiting(sizes(), monkeypatch) == [*range(100), 0]
    assert slurm.reads == 1


def test_a_try_that_is_ended_before_it_has_ended_those_that_it_replaces_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(queued("7", "RUNNING", name=FIRST.name("train")), accounting=[])
    run = JobRun(AsyncSlurmClient(slurm), BatchJob(command="train", name="train"), [SECOND], replaced=[FIRST])
    run_without_waiting(run.cancel(), monkeypatch)
    assert run.cancelled == (JobId(7),)
