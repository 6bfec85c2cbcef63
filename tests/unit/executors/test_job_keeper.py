"""The jobs of tasks in memory: each task that was handed over has one end, whatever becomes of its job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from airflow_provider_soperator.executors import runner
from airflow_provider_soperator.executors.books import News, NewsKind
from airflow_provider_soperator.executors.environment import RENEWED, PrepareFolder, WithdrawLegs
from airflow_provider_soperator.executors.task_jobs import QueuedTask
from airflow_provider_soperator.slurm.errors import from_output
from airflow_provider_soperator.slurm.files import FileError, RemoveFiles, UnpackFiles, WorkingFolder
from airflow_provider_soperator.slurm.requests import JobDetail
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from airflow_provider_soperator.transports.transport_errors import UnknownEndpoint
from tests.unit.client.tracking import run_without_waiting
from tests.unit.executors.cluster import ROOT, Away, ClusterOfTasks, Keeper, LoginNode

T = TypeVar("T")


@pytest.fixture
def play_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, T]], T]:
    async def to_its_end(play: Coroutine[Any, Any, T]) -> T:
        result = await play
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return result

    return lambda play: run_without_waiting(to_its_end(play), monkeypatch)


def task(leg: str, index: int = -1, **asked: Any) -> QueuedTask:
    return QueuedTask(leg, "train", "manual", "fit", index, "default", asked, {"log_path": f"{leg}.log"})


@pytest.fixture
def slurm() -> ClusterOfTasks:
    return ClusterOfTasks()


async def submitted(slurm: ClusterOfTasks) -> Keeper:
    """A keeper whose task ``a`` has its job."""
    keeper = Keeper(slurm)
    await keeper.keeper.submit([task("a")])
    await keeper.until("a", NewsKind.SUBMITTED)
    return keeper


def test_mapped_tasks_are_submitted_at_once_and_each_has_its_own_end(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task(f"leg-{index}", index) for index in range(3)])
        for index in range(3):
            await keeper.until(f"leg-{index}", NewsKind.SUBMITTED)
        assert set(slurm.files) == {f"{ROOT}/tasks/leg-{index}" for index in range(3)}
        jobs = slurm.jobs()
        for job, state in zip(jobs, ("COMPLETED", "TIMEOUT", "COMPLETED"), strict=True):
            slurm.end(job, state)
        failed = await keeper.until("leg-1", NewsKind.FAILED)
        assert "is TIMEOUT" in failed.text
        assert failed.lines[0].startswith("Diagnosis of job")
        assert failed.log_path == "leg-1.log"
        await keeper.until("leg-2", NewsKind.SUCCEEDED)
        await asyncio.sleep(20)
        # Airflow knows of these ends by now.
        await keeper.keeper.drop([*keeper.keeper.ended])
        return keeper

    keeper = play_out(play())
    assert slurm.count(SubmitOnce) == 1
    succeeded = [NewsKind.SUCCEEDED]
    assert keeper.ends() == {"leg-0": succeeded, "leg-1": [NewsKind.FAILED], "leg-2": succeeded}
    assert not slurm.files


@pytest.mark.parametrize(
    ("stdout", "is_removed"),
    [(f"{ROOT}/output/7.out", True), ("/data/results", False), (f"{ROOT}/output/../environments", False)],
)
def test_of_the_output_of_jobs_what_lies_in_the_executors_folder_is_removed(
    stdout: str, is_removed: bool, slurm: ClusterOfTasks, play_out: Any
) -> None:
    async def play() -> None:
        keeper = await submitted(slurm)
        # As by `scontrol update StdOut=`.
        slurm.queue = [replace(one, stdout=stdout) for one in slurm.queue]
        slurm.files[stdout] = b"said"
        slurm.end(slurm.jobs()[0], "COMPLETED")
        await keeper.until("a", NewsKind.SUCCEEDED)
        await keeper.keeper.drop([*keeper.keeper.ended])

    play_out(play())
    assert (stdout not in slurm.files) == is_removed


def test_what_is_rejected_is_told_of_its_task_alone(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("bad", gpu=1), task("good")])
        await keeper.until("good", NewsKind.SUBMITTED)
        return keeper

    keeper = play_out(play())
    assert keeper.ends() == {"bad": [NewsKind.FAILED]}
    assert "did you mean 'gpus'" in keeper.news[0].text


def test_a_cluster_without_airflow_fails_each_task_in_words(slurm: ClusterOfTasks, play_out: Any) -> None:
    slurm.preparation = FileError("/venv/bin/python has no Airflow: install it there")
    slurm.preparation.lines = ("mysqlclient needs headers",)

    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a"), task("b")])
        slurm.preparation = None
        await keeper.keeper.submit([task("c")])
        await keeper.until("c", NewsKind.SUBMITTED)
        return keeper

    keeper = play_out(play())
    assert keeper.ends() == {"a": [NewsKind.FAILED], "b": [NewsKind.FAILED]}
    assert "has no Airflow: install it there" in keeper.news[0].text
    assert keeper.news[0].lines == ("mysqlclient needs headers",)


def test_tasks_that_wait_for_a_venv_which_cannot_be_made_fail_with_it(slurm: ClusterOfTasks, play_out: Any) -> None:
    slurm.preparation, slurm.seconds[PrepareFolder] = FileError("the venv cannot be made"), 300

    async def play() -> Keeper:
        keeper = Keeper(slurm)
        submissions = []
        for leg in ("a", "b", "c"):
            submissions.append(asyncio.ensure_future(keeper.keeper.submit([task(leg)])))
            await asyncio.sleep(10)
        await asyncio.gather(*submissions)
        assert slurm.count(PrepareFolder) == 1
        # It may have been mended by now.
        await keeper.keeper.submit([task("d")])
        return keeper

    assert play_out(play()).ends() == {leg: [NewsKind.FAILED] for leg in ("a", "b", "c", "d")}
    assert slurm.count(PrepareFolder) == 2


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (runner.NOT_WANTED, NewsKind.NOT_WANTED, ""),
        (runner.UNREACHED, NewsKind.FAILED, "did not reach Airflow's API server"),
        (runner.REFUSED, NewsKind.FAILED, "its token: executor_token_days were over, or clocks or jwt_secret differ"),
        (1, NewsKind.FAILED, "failed with"),
    ],
)
def test_exit_codes_of_the_runner_are_told_in_words(
    slurm: ClusterOfTasks, play_out: Any, code: int, kind: NewsKind, said: str
) -> None:
    async def play() -> News:
        keeper = await submitted(slurm)
        slurm.end(slurm.jobs()[0], "FAILED", code)
        return await keeper.until("a", kind)

    assert said in play_out(play()).text


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("TIMEOUT", "is TIMEOUT: set a longer time_limit in executor_config"),
        ("NODE_FAIL", "is NODE_FAIL: retries of its task"),
        ("PREEMPTED", "is PREEMPTED: retries of its task"),
    ],
)
def test_no_advice_is_one_that_the_executor_would_reject(
    slurm: ClusterOfTasks, play_out: Any, end: str, said: str
) -> None:
    async def play() -> News:
        keeper = await submitted(slurm)
        slurm.end(slurm.jobs()[0], end)
        return await keeper.until("a", NewsKind.FAILED)

    told = play_out(play()).text
    assert said in told
    assert "requeue" not in told


@pytest.mark.parametrize("state", ["CONFIGURING", "RUNNING+CONFIGURING", "RUNNING+POWER_UP_NODE"])
def test_a_job_whose_nodes_boot_has_not_started(slurm: ClusterOfTasks, play_out: Any, state: str) -> None:
    async def play() -> Keeper:
        keeper = await submitted(slurm)
        slurm.end(slurm.jobs()[0], state)
        assert "waits: its nodes boot" in (await keeper.until("a", NewsKind.WAITING)).text
        slurm.end(slurm.jobs()[0], "RUNNING")
        await keeper.until("a", NewsKind.STARTED)
        return keeper

    kinds = [one.kind for one in play_out(play()).news]
    assert kinds == [NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED]


def test_a_job_that_was_put_back_is_told_to_wait_for_the_same_once_more(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper = await submitted(slurm)
        for state, restarts in (("PENDING", 0), ("RUNNING", 0), ("PENDING", 1)):
            slurm.queue = [replace(one, reason="Resources", restarts=restarts) for one in slurm.queue]
            slurm.end(slurm.jobs()[0], state)
            await asyncio.sleep(30)
        await asyncio.sleep(30)
        return keeper

    kinds = [one.kind for one in play_out(play()).news]
    assert kinds == [NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED, NewsKind.WAITING]


def test_tasks_that_are_not_wanted_end_their_job_unless_others_share_it(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("alone"), task("a", share=2), task("b", share=2)])
        for leg in ("alone", "a", "b"):
            await keeper.until(leg, NewsKind.SUBMITTED)
        await keeper.keeper.drop(["alone", "a", "unknown"])
        await asyncio.sleep(30)
        assert [str(job.state) for job in slurm.queue].count("CANCELLED") == 1
        slurm.end(next(job.id for job in slurm.queue if str(job.state) != "CANCELLED"), "COMPLETED")
        await keeper.until("b", NewsKind.SUCCEEDED)
        return keeper

    ends = play_out(play()).ends()
    assert (ends["alone"], ends["b"]) == ([NewsKind.NOT_WANTED], [NewsKind.SUCCEEDED])
    assert ends["a"] == [NewsKind.NOT_WANTED]


def test_a_task_that_is_not_wanted_is_told_of_once_its_job_is_gone(slurm: ClusterOfTasks, play_out: Any) -> None:
    def refuse() -> None:
        raise FileError("the disk is full")

    async def play() -> Keeper:
        keeper = await submitted(slurm)
        slurm.before = refuse
        with pytest.raises(FileError):
            await keeper.keeper.drop(["a"])
        slurm.before = lambda: None
        await asyncio.sleep(30)
        assert keeper.ends() == {}
        await keeper.keeper.drop(["a"])
        assert (await keeper.until("a", NewsKind.NOT_WANTED)).text == ""
        return keeper

    assert play_out(play()).ends() == {"a": [NewsKind.NOT_WANTED]}
    assert [str(job.state) for job in slurm.queue] == ["CANCELLED"]
    # A thousand may be cleared together.
    assert slurm.count(JobDetail) == 0


@pytest.mark.parametrize("step", [UnpackFiles, SubmitOnce])
def test_no_token_is_left_of_a_submission_that_has_failed(
    slurm: ClusterOfTasks, play_out: Any, step: type[Any]
) -> None:
    def refuse() -> None:
        if slurm.asked and isinstance(slurm.asked[-1], step):
            raise FileError("refused")

    async def play() -> Keeper:
        keeper = Keeper(slurm)
        slurm.before = refuse
        await keeper.keeper.submit([task("a"), task("rejected", gpu=1)])
        await keeper.until("a", NewsKind.FAILED)
        slurm.before = lambda: None
        await keeper.keeper.drop([*keeper.keeper.ended])
        return keeper

    keeper = play_out(play())
    assert keeper.ends() == {"a": [NewsKind.FAILED], "rejected": [NewsKind.FAILED]}
    assert not slurm.files


def test_what_another_scheduler_has_submitted_is_adopted_while_an_environment_is_made(
    slurm: ClusterOfTasks, play_out: Any
) -> None:
    async def play() -> None:
        first, second = Keeper(slurm), Keeper(slurm)
        await first.keeper.submit([task("a")])
        await first.until("a", NewsKind.SUBMITTED)
        await first.keeper.close()
        slurm.seconds[PrepareFolder] = 300
        submission = asyncio.ensure_future(second.keeper.submit([task("b")]))
        await asyncio.sleep(1)
        assert await second.keeper.adopt(["a"]) == {"a"}
        assert not submission.done()

    play_out(play())


def test_jobs_of_another_scheduler_are_adopted_even_if_they_have_ended(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        first, second = Keeper(slurm), Keeper(slurm)
        await first.keeper.submit([task(f"leg-{index}", index) for index in range(2)] + [task("x", mem="1G")])
        for leg in ("leg-0", "leg-1", "x"):
            await first.until(leg, NewsKind.SUBMITTED)
        await first.keeper.close()
        # This file was written, and its job not submitted.
        lost = {"name": "fit.train.manual", "key": "q6befiawjvkz", "tasks": 1, "workload": {"log_path": ""}}
        slurm.files[f"{ROOT}/tasks/lost"] = json.dumps(lost).encode()
        # And these are of somebody who tries what comes of it.
        odd = {"listed": [], "bare": lost | {"workload": "x"}, "nameless": lost | {"key": None}}
        slurm.files |= {f"{ROOT}/tasks/{name}": json.dumps(said).encode() for name, said in odd.items()}
        ended = next(job for job in slurm.jobs() if job.element == 1)
        slurm.end(ended, "NODE_FAIL")
        assert await second.keeper.adopt(["leg-0", "leg-1", "x", "lost", "unknown", *odd]) == {"leg-0", "leg-1", "x"}
        failed = await second.until("leg-1", NewsKind.FAILED)
        assert failed.log_path == "leg-1.log"
        # The page finds the task by these, and the first may have ended before its own were saved.
        told = [{one.text for one in keeper.news if one.kind is NewsKind.SUBMITTED} for keeper in (first, second)]
        assert told[0] == told[1]
        assert len(told[0]) == 3
        for job in [job.id for job in slurm.queue if job.id != ended]:
            slurm.end(job, "COMPLETED")
        await second.until("leg-0", NewsKind.SUCCEEDED)
        await second.until("x", NewsKind.SUCCEEDED)
        return second

    play_out(play())
    assert slurm.calls == 2


def test_a_job_of_which_another_scheduler_has_adopted_a_task_goes_on(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        first, second, third = Keeper(slurm), Keeper(slurm), Keeper(slurm)
        await first.keeper.submit([task("a", share=2), task("b", share=2)])
        await first.until("a", NewsKind.SUBMITTED)
        await first.keeper.close()
        assert (await second.keeper.adopt(["a"]), await third.keeper.adopt(["b"])) == ({"a"}, {"b"})
        await second.keeper.drop(["a"])
        await asyncio.sleep(30)
        assert [str(job.state) for job in slurm.queue] == ["PENDING"]
        assert (second.ends(), third.ends()) == ({}, {})
        # Once it has adopted the other one as well, nobody else can want it.
        assert await second.keeper.adopt(["b"]) == {"b"}
        await second.keeper.drop(["a", "b"])
        await second.until("b", NewsKind.NOT_WANTED)
        return second

    assert play_out(play()).ends() == {"a": [NewsKind.NOT_WANTED], "b": [NewsKind.NOT_WANTED]}


def test_jobs_are_adopted_once_the_cluster_answers(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        first, second = Keeper(slurm), Keeper(slurm)
        await first.keeper.submit([task("a")])
        await first.until("a", NewsKind.SUBMITTED)
        await first.keeper.close()
        away = [True] * 3

        def refuse() -> None:
            if away:
                away.pop()
                raise FileError("away")

        slurm.before = refuse
        await second.keeper.adopt_later(["a", "lost"])
        await second.until("lost", NewsKind.NOT_SUBMITTED)
        slurm.end(slurm.jobs()[0], "COMPLETED")
        await second.until("a", NewsKind.SUCCEEDED)
        return second

    assert play_out(play()).ends() == {"a": [NewsKind.SUCCEEDED], "lost": [NewsKind.NOT_SUBMITTED]}


def test_what_may_yet_be_submitted_elsewhere_is_not_put_back_before_it_is_withdrawn(
    slurm: ClusterOfTasks, play_out: Any
) -> None:
    full = [True] * 3

    def refuse() -> None:
        if full and isinstance(slurm.asked[-1], UnpackFiles):
            full.pop()
            raise FileError(f"writing to {ROOT}/tasks: tar: a.withdrawn: Cannot open: No space left on device")

    async def play() -> None:
        keeper = Keeper(slurm)
        slurm.before = refuse
        await keeper.keeper.adopt_later(["a"])
        assert f"{ROOT}/tasks/a.withdrawn" in slurm.files
        assert keeper.ends() == {"a": [NewsKind.NOT_SUBMITTED]}

    play_out(play())
    assert (slurm.count(WithdrawLegs), full) == (4, [])


def test_a_submission_waits_while_the_cluster_is_away(slurm: ClusterOfTasks, play_out: Any) -> None:
    fails = [True] * 30

    def refuse() -> None:
        if fails:
            fails.pop()
            raise Away("connection refused")

    slurm.before = refuse

    async def play() -> Keeper:
        keeper = await submitted(slurm)
        return keeper

    keeper = play_out(play())
    assert not keeper.ends()
    assert slurm.calls == 1


class Limited(ClusterOfTasks):
    """A cluster that accepts no more jobs of a user than there is room for."""

    room, says = 1, "AssocMaxSubmitJobLimit"

    def submit(self, request: SubmitOnce) -> tuple[Submitted, ...]:
        refusal = f"sbatch: error: {self.says}\nsbatch: error: Job violates accounting/QOS policy (job submit limit)"
        answers = list[Submitted]()
        for job in request.jobs:
            if sum(not one.state.is_finished for one in self.queue) < self.room:
                answers += super().submit(replace(request, jobs=(job,), packables=None))
            else:
                answers.append(Submitted(None, error=from_output(("sbatch",), 1, b"", refusal.encode())))
        return tuple(answers)


@pytest.mark.parametrize(
    "limit",
    [
        *("AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "QOSGrpSubmitJobsLimit"),
        *("QOSMaxSubmitJobPerUserLimit", "MaxSubmitJobsPerAccount"),
    ],
)
def test_tasks_wait_for_room_among_the_submitted_jobs_of_their_user(limit: str, play_out: Any) -> None:
    slurm = Limited()
    slurm.says = limit

    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a"), task("b", mem="1G")])
        waits = await keeper.until("b", NewsKind.WAITING)
        assert f"not submitted yet: sbatch: {limit}" in waits.text
        await asyncio.sleep(600)
        slurm.end(slurm.jobs()[0], "COMPLETED")
        await keeper.until("b", NewsKind.SUBMITTED)
        return keeper

    keeper = play_out(play())
    assert keeper.ends() == {"a": [NewsKind.SUCCEEDED]}
    assert [one.kind for one in keeper.news if one.leg == "b"] == [NewsKind.WAITING, NewsKind.SUBMITTED]


def test_a_job_of_its_own_that_is_beyond_a_limit_fails_its_task(play_out: Any) -> None:
    slurm = Limited()
    slurm.room, slurm.says = 0, "QOSMaxNodePerUserLimit"

    async def play() -> News:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a")])
        return await keeper.until("a", NewsKind.FAILED)

    assert "could not be submitted: sbatch: QOSMaxNodePerUserLimit" in play_out(play()).text


def test_a_task_that_is_cleared_while_it_waits_for_room_is_not_submitted(play_out: Any) -> None:
    slurm = Limited()
    slurm.room = 0

    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a")])
        await keeper.until("a", NewsKind.WAITING)
        await keeper.keeper.drop(["a"])
        slurm.room = 1
        await keeper.until("a", NewsKind.NOT_WANTED)
        return keeper

    assert play_out(play()).ends() == {"a": [NewsKind.NOT_WANTED]}
    assert not slurm.queue


def test_a_limit_that_keeps_many_tasks_waiting_costs_slurmctld_little(play_out: Any) -> None:
    slurm = Limited()
    slurm.room = 0

    async def play() -> None:
        keeper = Keeper(slurm)
        # Each became ready on its own.
        for number in range(200):
            await keeper.keeper.submit([task(f"leg-{number}")])
        await asyncio.sleep(60)
        tries = sum(len(request.jobs) for request in slurm.asked if isinstance(request, SubmitOnce))
        await asyncio.sleep(600)
        later = sum(len(request.jobs) for request in slurm.asked if isinstance(request, SubmitOnce))
        assert later - tries <= 2 * 600

    play_out(play())


def test_a_connection_that_cannot_be_read_anew_is_used_as_it_was(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a")])
        keeper.keeper.connection._read_at -= 2 * RENEWED

        def missing(_: str) -> Any:
            raise UnknownEndpoint("there is no connection soperator_default", "")

        keeper.keeper.connection._lend = missing
        await keeper.keeper.submit([task("b")])
        await keeper.until("b", NewsKind.SUBMITTED)
        return keeper

    assert play_out(play()).ends() == {}


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_what_waits_for_the_cluster_goes_on_with_a_connection_that_is_corrected(
    slurm: ClusterOfTasks, play_out: Any, answers: int
) -> None:
    async def play() -> Keeper:
        keeper, gone = Keeper(slurm), LoginNode(slurm)
        keeper.connect(gone)

        def answer() -> None:
            gone.is_away = len(slurm.asked) >= answers

        slurm.before, gone.is_away = answer, not answers
        submission = asyncio.ensure_future(keeper.keeper.submit([task("a")]))
        await asyncio.sleep(10 * RENEWED)
        slurm.before = lambda: None
        keeper.connect(LoginNode(slurm))
        await keeper.until("a", NewsKind.SUBMITTED)
        await submission
        return keeper

    assert play_out(play()).ends() == {}
    assert slurm.calls == 1


@pytest.mark.parametrize("late", [WorkingFolder, PrepareFolder])
def test_the_answer_of_a_connection_that_has_been_replaced_is_not_kept(
    slurm: ClusterOfTasks, play_out: Any, late: type[Any]
) -> None:
    other = ClusterOfTasks()
    other.home = "/other"

    async def play() -> None:
        keeper = Keeper(slurm)
        slurm.seconds[late] = 1.5 * RENEWED
        submission = asyncio.ensure_future(keeper.keeper.submit([task("a")]))
        await asyncio.sleep(1.1 * RENEWED)
        keeper.connect(LoginNode(other))
        # A look finds it first.
        await keeper.keeper.drop(["another"])
        await submission
        connection = keeper.keeper.connection
        for client, folder in (await connection.reach(), await connection.prepared()):
            assert (client, folder.root) == (keeper._client, "/other/airflow/executor")

    play_out(play())
    assert (list(slurm.files), list(other.files)) == ([], ["/other/airflow/executor/tasks/a"])


def test_the_files_of_any_number_of_tasks_are_removed_together(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> None:
        keeper = Keeper(slurm)
        keeper.keeper._ended |= {f"leg-{index}": [f"{ROOT}/tasks/leg-{index}"] for index in range(3000)}
        slurm.files = {path: b"" for [path] in keeper.keeper._ended.values()}
        await keeper.keeper.drop([*keeper.keeper.ended])

    play_out(play())
    assert (slurm.count(RemoveFiles), slurm.files) == (1, {})


def test_jobs_are_followed_by_a_connection_that_is_corrected(slurm: ClusterOfTasks, play_out: Any) -> None:
    async def play() -> Keeper:
        keeper, gone = Keeper(slurm), LoginNode(slurm)
        keeper.connect(gone)
        await keeper.keeper.submit([task("a")])
        await keeper.until("a", NewsKind.SUBMITTED)
        gone.is_away = True
        keeper.connect(LoginNode(slurm))
        slurm.end(slurm.jobs()[0], "COMPLETED")
        for _ in range(20):
            await asyncio.sleep(RENEWED / 4)
            # As the scheduler does, which looks for tasks that were cleared.
            await keeper.keeper.drop([])
        return keeper

    assert play_out(play()).ends() == {"a": [NewsKind.SUCCEEDED]}


def test_the_file_of_a_task_that_runs_for_months_is_there_for_another_scheduler(
    slurm: ClusterOfTasks, play_out: Any
) -> None:
    async def play() -> None:
        keeper = Keeper(slurm)
        await keeper.keeper.submit([task("a")])

    play_out(play())
    assert [request.keep for request in slurm.asked if isinstance(request, PrepareFolder)] == [7 + 90]
