"""Mapped tasks whose jobs go as arrays, and stay each its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

from airflow_provider_soperator.client.batcher import LONGEST, QUIET
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.slurm import packs
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, classify
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, CancelJobs, ListJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.unit.client.tracking import Slurm, past, queued, run_without_waiting

NAME = "fit.dag"


def key(index: int, number: int = 1) -> SubmissionKey:
    return SubmissionKey.derive("dag", "run", "fit", index // 1000, number, element=index % 1000)


def array_name(number: int = 1, index: int = 0) -> str:
    return key(index, number).shared.name(NAME)


def run_of(client: AsyncSlurmClient, index: int, tries: int = 1, gather: bool = True) -> JobRun:
    job = BatchJob(command=["fit", str(index)], name=f"fit.{index}.dag", output=f"fit.{index}-%j.out")
    return JobRun(client, job, [key(index, number) for number in range(1, tries + 1)], gather=gather)


def submitted(slurm: Slurm, indices: Iterable[int], monkeypatch: pytest.MonkeyPatch, **kinds: Any) -> list[JobRun]:
    runs = [run_of(AsyncSlurmClient(slurm), 0)][:0]

    async def all_of_them() -> None:
        client = AsyncSlurmClient(slurm)
        runs.extend(run_of(client, index, **kinds) for index in indices)
        await asyncio.gather(*(run.submit() for run in runs))

    run_without_waiting(all_of_them(), monkeypatch)
    return runs


def ids(runs: Iterable[JobRun]) -> list[str]:
    return [str(run.submitted and run.submitted.id) for run in runs]


def test_each_thousand_of_equal_jobs_is_one_call_of_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    runs = submitted(slurm, range(2500), monkeypatch)
    assert slurm.calls == 3
    assert [run.submitted and run.submitted.key for run in runs] == [key(index) for index in range(2500)]
    assert ids(runs)[1017] == "8_17"


def test_what_a_job_has_in_common_with_others_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    packable_of = packs.packable_of
    monkeypatch.setattr(packs, "packable_of", lambda job: asked.append(job.name) or packable_of(job))
    slurm = Slurm(accounting=[])
    submitted(slurm, range(20), monkeypatch)
    assert (slurm.calls, len(asked)) == (1, 20)


def test_those_that_come_one_after_another_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])

    async def come(pauses: Iterable[float]) -> None:
        client, begun = AsyncSlurmClient(slurm), []
        for index, pause in enumerate(pauses):
            begun.append(asyncio.ensure_future(run_of(client, index).submit()))
            await asyncio.sleep(pause)
        await asyncio.gather(*begun)

    run_without_waiting(come([0.9 * QUIET] * 5), monkeypatch)
    assert slurm.calls == 1
    # None waits for long, however many come.
    run_without_waiting(come([1.0] * (2 * int(LONGEST) + 2)), monkeypatch)
    assert 3 <= slurm.calls <= 4


def test_one_that_ends_while_it_waits_for_others_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])

    async def ended() -> None:
        client = AsyncSlurmClient(slurm)
        begun = [asyncio.ensure_future(run_of(client, index).submit()) for index in range(3)]
        await asyncio.sleep(QUIET / 2)
        begun[1].cancel()
        await asyncio.wait(begun)

    run_without_waiting(ended(), monkeypatch)
    assert [str(job.id) for job in slurm.queue] == ["7_[0,2]"]


def test_those_that_come_later_wait_for_each_other_though_one_before_them_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(accounting=[])

    async def ended() -> None:
        client = AsyncSlurmClient(slurm)
        alone = asyncio.ensure_future(run_of(client, 0).submit())
        await asyncio.sleep(QUIET / 2)
        alone.cancel()
        await asyncio.sleep(LONGEST)
        first = asyncio.ensure_future(run_of(client, 1).submit())
        await asyncio.sleep(QUIET / 2)
        await asyncio.gather(first, run_of(client, 2).submit())

    run_without_waiting(ended(), monkeypatch)
    assert [str(job.id) for job in slurm.queue] == ["7_[1-2]"]


def test_in_a_worker_none_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    [run] = submitted(slurm, [3], monkeypatch, gather=False)
    assert ids([run]) == ["7"]
    assert slurm.queue[0].name == key(3).name("fit.3.dag")


def test_where_arrays_are_refused_each_goes_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster may take none, or none with such indices (MaxArraySize)."""

    class Strict(Slurm):
        def submit(self, request: SubmitOnce) -> tuple[Submitted, ...]:
            said = "Batch job submission failed: Invalid job array specification"
            if any(len(call.places) > 1 for call in request.calls):
                return tuple(Submitted(None, error=classify("sbatch", said)) for _ in request.jobs)
            return super().submit(request)

    slurm = Strict(accounting=[])
    assert ids(submitted(slurm, range(3), monkeypatch)) == ["7", "8", "9"]
    assert slurm.count(SubmitOnce) == 2


def test_a_retry_is_of_what_has_failed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some have left the queue; one was submitted on its own.
    ends = [queued(f"41_{index}", "FAILED", name=array_name()) for index in (0, 1)]
    gone = [past("41_2", "FAILED", name=array_name()), past("41_3", "COMPLETED", name=array_name())]
    alone = queued("40", "RUNNING", name=key(4).name("fit.4.dag"))
    slurm = Slurm(*ends, alone, queued("41_[5-6]", "PENDING", name=array_name()), accounting=gone)
    slurm.next_id = 50
    runs = submitted(slurm, range(7), monkeypatch, tries=2)
    assert ids(runs) == ["50_0", "50_1", "50_2", "41_3", "40", "41_5", "41_6"]
    assert slurm.calls == 1
    # Names in accounting: those of the arrays are few.
    names = [name for one in slurm.asked if isinstance(one, Accounting) for name in one.names]
    assert names.count(array_name()) == 1


def test_the_first_number_counts_however_it_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = queued("40", "RUNNING", name=key(4).name("fit.4.dag"))
    slurm = Slurm(queued("39_[3-5]", "PENDING", name=array_name()), alone, accounting=[])
    assert ids(submitted(slurm, [4], monkeypatch, tries=2)) == ["39_4"]


def test_an_element_that_the_queue_forgets_between_two_looks_has_ended_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [queued("41_4", "FAILED", name=array_name()), queued("41_5", "RUNNING", name=array_name())]
    slurm = Slurm(*rows, accounting=None)
    slurm.next_id = 50

    def before_look() -> None:
        if slurm.count(ListJobs) == 2:
            del slurm.queue[0]

    slurm.before_look = before_look
    assert ids(submitted(slurm, [4], monkeypatch, tries=2)) == ["50"]


def test_a_kill_ends_its_own_element(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [queued("41_1", "RUNNING", name=array_name()), queued("41_[2-9]", "PENDING", name=array_name())]
    slurm = Slurm(*rows, accounting=[])

    async def killed() -> list[tuple[JobId, ...]]:
        client = AsyncSlurmClient(slurm)
        runs = [run_of(client, index) for index in (1, 4, 12)]
        await asyncio.gather(*(run.cancel() for run in runs))
        return [run.cancelled for run in runs]

    assert run_without_waiting(killed(), monkeypatch) == [(JobId(41, 1),), (JobId(41, 4),), ()]
    assert [one.ids for one in slurm.orders if isinstance(one, CancelJobs)] == [(JobId(41, 1), JobId(41, 4))]


def test_what_has_not_ended_is_known_by_element_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        queued("41_1", "COMPLETED", name=array_name()),
        queued("41_[2-9]", "PENDING", name=array_name()),
        queued("42_2", "RUNNING", name="another"),
    ]
    slurm = Slurm(*rows, accounting=[])
    asked = {JobId(41, 1): key(1), JobId(41, 2): key(2), JobId(42, 2): key(2), JobId(41, 3): key(3)}
    unfinished = run_without_waiting(AsyncSlurmClient(slurm).unfinished(asked), monkeypatch)
    assert unfinished == (JobId(41, 2), JobId(41, 3))


# Each is followed as a job of its own


def ends_of(
    slurm: Slurm, indices: Iterable[int], later: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch
) -> dict[int, JobStatus | None]:
    async def watched() -> dict[int, JobStatus | None]:
        client = AsyncSlurmClient(slurm)
        watches = {
            index: client.watch(JobId(7, index), name=key(index).suffix_of(JobId(7, index)), mine=True)
            for index in indices
        }
        changes = asyncio.ensure_future(later)
        found = await asyncio.gather(*(watch.end() for watch in watches.values()))
        await changes
        return dict(zip(watches, found, strict=True))

    return run_without_waiting(watched(), monkeypatch)


def test_an_end_is_that_of_the_element(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(queued("7_[0-2]", "PENDING", name=array_name()), accounting=[])

    async def later() -> None:
        await asyncio.sleep(60)
        states = ["COMPLETED", "FAILED", "CANCELLED"]
        slurm.queue = [queued(f"7_{index}", state, name=array_name()) for index, state in enumerate(states)]

    ends = ends_of(slurm, range(3), later(), monkeypatch)
    assert {index: str(end and end.state) for index, end in ends.items()} == {
        0: "COMPLETED",
        1: "FAILED",
        2: "CANCELLED",
    }
    assert [(end.id, [part.id for part in end.parts], end.is_array) for end in ends.values() if end] == [
        (JobId(7, index), [JobId(7, index)], False) for index in range(3)
    ]


def test_one_that_is_lost_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran when it was last seen, and the others still do."""
    names = {"name": array_name()}
    slurm = Slurm(*(queued(f"7_{index}", "RUNNING", **names) for index in range(3)), accounting=[])

    async def later() -> None:
        await asyncio.sleep(60)
        del slurm.queue[0]
        await asyncio.sleep(6000)
        slurm.queue = [queued(f"7_{index}", "COMPLETED", **names) for index in (1, 2)]

    ends = ends_of(slurm, range(3), later(), monkeypatch)
    assert [bool(end and end.lost) for end in ends.values()] == [True, False, False]


def test_one_that_was_never_seen_is_lost_and_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld may have forgotten it, and given its number to others of the same tasks."""
    names = {"name": array_name()}
    slurm = Slurm(queued("7_1", "RUNNING", **names), accounting=[past("7_1", "RUNNING", **names)])

    async def later() -> None:
        await asyncio.sleep(600)
        slurm.queue = [queued("7_1", "COMPLETED", **names)]

    ends = ends_of(slurm, [1, 2], later(), monkeypatch)
    assert {index: (end and end.succeeded, end and end.lost) for index, end in ends.items()} == {
        1: (True, ""),
        2: (False, "it is in neither the queue nor accounting now"),
    }


def test_all_elements_share_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(queued("7_[0-999]", "PENDING", name=array_name()), accounting=[])

    async def later() -> None:
        await asyncio.sleep(100)
        slurm.queue = [queued(f"7_{index}", "COMPLETED", name=array_name()) for index in range(1000)]

    ends_of(slurm, range(1000), later(), monkeypatch)
    assert slurm.count(ListJobs) < 60


def test_output_of_an_element_is_that_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files = {"/home/fit.2-9.out": b"one\ntwo\n"}

    async def followed() -> list[Any]:
        run = run_of(AsyncSlurmClient(slurm), 2)
        await asyncio.gather(run.submit(), run_of(run.client, 3).submit())
        fields: dict[str, Any] = {"name": array_name(), "raw_id": 9, "workdir": "/home", "stdout": "fit.%a-%j.out"}
        slurm.queue = [queued("7_2", "RUNNING", **fields)]
        news = []
        async for one in run.follow():
            news.append(one)
            if len(news) == 2:
                slurm.queue = [queued("7_2", "COMPLETED", **fields)]
        return news

    news = run_without_waiting(followed(), monkeypatch)
    assert [line for one in news for line in getattr(one, "lines", ())] == ["one", "two"]
    assert str(news[-1].id) == "7_2"


def test_slurmctld_that_is_away_makes_no_array_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    failures = iter([None, ControllerUnreachable("away"), None, None, None])

    def before() -> None:
        if failure := next(failures, None):
            raise failure

    slurm.before = before
    runs = submitted(slurm, range(5), monkeypatch)
    runs += submitted(slurm, range(3, 8), monkeypatch)
    assert ids(runs) == [f"7_{index}" for index in range(5)] + ["7_3", "7_4", "8_5", "8_6", "8_7"]
