"""Pictures of a cluster: one for all who look, and what is told of what could not be read."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from async_timeout import timeout

from airflow_provider_soperator.board import picture as pictures
from airflow_provider_soperator.board.looks import Looks
from airflow_provider_soperator.board.picture import OldFiles, Picture, take, without_tasks
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.functions.call import FOLDER
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import CommandOutput, ListJobs, ListNodes, ListReservations, ShowConfig
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.patience import PATIENCE

JOB = Job(id=JobId(7))
TASKS = JobTasks(dag_id="train", run_id="r1", task_id="fit")


class Slurm:
    """What a cluster answers, and how often it was asked."""

    def __init__(self) -> None:
        self.answers: dict[type, Any] = {ListNodes: (Node(name="worker-0"),), ListJobs: (JOB,), ListReservations: ()}
        self.asked = 0
        self.trouble: Exception | None = None
        #: While it is clear, nothing is answered.
        self.answering = asyncio.Event()
        self.answering.set()
        #: While it is clear, the connection cannot be read.
        self.reaching = asyncio.Event()
        self.reaching.set()

    async def ask(self, request: Any) -> Any:
        self.asked += 1
        await self.answering.wait()
        answer = self.answers[type(request)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask_now(self, request: Any, max_age: float) -> Any:
        if isinstance(request, ShowConfig):
            return ClusterConfig(version="25.11.3")
        return () if isinstance(request, OldFiles) else await self.ask(request)

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[Slurm]:
        await self.reaching.wait()
        if self.trouble:
            raise self.trouble
        yield self


@contextmanager
def cluster(**limits: float) -> Iterator[Slurm]:
    """A cluster; all that answers has a minute for it, unless the test says otherwise."""
    slurm = Slurm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "SlurmHook", lambda connection: slurm)
        patch.setattr(pictures, "find_tasks", find_tasks)
        patch.setattr(pictures, "PATIENCE", limits.get("PATIENCE", 60.0))
        yield slurm


def find_tasks(jobs: Any, known: Any, new: Any) -> dict[JobId, JobTasks]:
    return {job.id: TASKS for job in jobs}


def test_a_picture_has_the_cluster_and_its_tasks() -> None:
    async def story() -> Picture:
        with cluster():
            return await take("c")

    seen = asyncio.run(story())
    assert (seen.nodes, seen.jobs, seen.tasks) == ((Node(name="worker-0"),), (JOB,), {JobId(7): TASKS})
    assert seen.failures == {}


def test_what_cannot_be_read_stays_as_it_was_and_is_told() -> None:
    async def story() -> tuple[Picture, Picture]:
        with cluster() as slurm:
            before = await take("c")
            slurm.answers[ListJobs] = SlurmError("Unable to contact slurm controller", "squeue")
            slurm.answers[ListNodes] = ()
            return before, await take("c", before)

    before, after = asyncio.run(story())
    assert (after.nodes, after.jobs, after.tasks) == ((), before.jobs, before.tasks)
    assert after.failures["jobs"].startswith("squeue: Unable to contact slurm controller")
    assert after.since == {"jobs": before.taken, "tasks": before.taken}


def test_what_was_never_read_has_no_age() -> None:
    async def story() -> Picture:
        with cluster() as slurm:
            slurm.answers[ListNodes] = SlurmError("Unable to contact slurm controller", "sinfo")
            return await take("c", await take("c", await take("c")))

    assert asyncio.run(story()).since == {}


def test_a_cluster_that_does_not_answer_is_told_after_a_while() -> None:
    async def story() -> Picture:
        with cluster(PATIENCE=0.05) as slurm:
            slurm.answering.clear()
            return await take("c")

    seen = asyncio.run(story())
    assert seen.failures["nodes"] == "No answer within 0.05 s."


def test_a_job_is_searched_for_its_task_until_that_has_had_time_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(timezone.utc)
    old, fresh = (Job(id=JobId(number), submitted=now - timedelta(minutes=5 * number)) for number in (1, 0))
    searched: list[set[JobId]] = []

    def find(jobs: Any, known: Any, new: set[JobId]) -> dict[JobId, JobTasks]:
        searched.append(new)
        return {}

    async def story() -> None:
        with cluster() as slurm:
            monkeypatch.setattr(pictures, "find_tasks", find)
            slurm.answers[ListJobs] = (old, fresh)
            await take("c", await take("c"))

    asyncio.run(story())
    assert searched == [{old.id, fresh.id}, {fresh.id}]


class Down:
    """A way to a cluster whose slurmctld is down, and which has no way to files."""

    async def ask(self, request: Any) -> Any:
        if isinstance(request, OldFiles):
            raise NotSupported("files")
        raise ControllerUnreachable("Unable to contact slurm controller", "squeue")


def test_the_cause_of_a_silence_is_told_before_it_is_waited_out() -> None:
    async def story() -> Picture:
        with cluster() as slurm:
            slurm.ask_now = AsyncSlurmClient(Down()).ask_now  # type: ignore[arg-type,method-assign]
            return await take("c")

    seen = asyncio.run(story())
    assert seen.failures.keys() == {"config", "nodes", "jobs", "reservations", "tasks"}
    assert seen.failures["jobs"].startswith("squeue: Unable to contact slurm controller. Check whether slurmctld is up")


def test_a_connection_that_is_wrong_is_told() -> None:
    async def story() -> Picture:
        with cluster() as slurm:
            slurm.trouble = ConnectionMistake("transport is rest, which needs rest_url")
            return await take("c")

    assert set(asyncio.run(story()).failures.values()) == {"Transport is rest, which needs rest_url."}


def test_a_connection_that_cannot_be_read_is_told_after_a_while() -> None:
    async def story() -> Picture:
        with cluster(PATIENCE=0.05) as slurm:
            slurm.reaching.clear()
            async with timeout(PATIENCE):
                return await take("c")

    assert set(asyncio.run(story()).failures.values()) == {"No answer within 0.05 s."}


def test_all_who_look_see_one_picture() -> None:
    async def story() -> tuple[int, set[int]]:
        with cluster() as slurm:
            album = Looks(take, interval=60.0, glance=60.0)
            seen = await asyncio.gather(*(album.newest("c") for _ in range(50)))
            seen += await asyncio.gather(*(album.newest("c") for _ in range(50)))
            return slurm.asked, {id(one) for one in seen}

    asked, different = asyncio.run(story())
    assert asked == 3
    assert len(different) == 1


def test_one_who_looks_first_does_not_wait_for_a_slow_cluster() -> None:
    async def story() -> tuple[Picture | None, Picture | None]:
        with cluster() as slurm:
            slurm.answering.clear()
            album = Looks(take, interval=60.0, glance=60.0)
            album.glance = 0.01
            first = await album.newest("c")
            slurm.answering.set()
            album.glance = 60.0
            return first, await album.newest("c")

    first, then = asyncio.run(story())
    assert first is None
    assert then is not None


def test_a_look_of_last_night_is_not_shown_as_if_it_were_of_now() -> None:
    async def story() -> list[bool]:
        with cluster() as slurm:
            album = Looks(take, interval=60.0, glance=60.0, longest=300.0)
            assert await album.newest("c")
            slurm.answering.clear()
            album.glance, shown = 0.0, []
            for seconds in (100.0, 600.0):
                album._frames["c"].at -= seconds
                shown.append(await album.newest("c") is not None)
            return shown

    assert asyncio.run(story()) == [True, False]


def test_a_picture_that_is_old_is_taken_anew() -> None:
    async def story() -> tuple[Picture | None, Picture | None]:
        with cluster() as slurm:
            album = Looks(take, interval=60.0, glance=60.0)
            first = await album.newest("c")
            album.interval = -1
            slurm.answers[ListNodes] = ()
            return first, await album.newest("c")

    first, then = asyncio.run(story())
    assert first is not None
    assert then is not None
    assert (len(first.nodes), len(then.nodes)) == (1, 0)


def test_one_who_may_not_see_a_dag_sees_its_jobs_alone() -> None:
    async def story() -> Picture:
        with cluster():
            return await take("c")

    seen = without_tasks(asyncio.run(story()), lambda dag: dag != "train")
    assert (seen.jobs, seen.tasks) == ((JOB,), {})


def test_the_name_of_a_job_whose_task_is_not_known_is_for_those_who_may_see_it() -> None:
    keyed = Job(id=JobId(9), name="fit.secret.manual.af-q6befiawjvkz")
    own = Job(id=JobId(10), name="interactive")
    shown = Picture(connection="c", taken=datetime.now(timezone.utc), jobs=(keyed, own))
    assert [job.name for job in without_tasks(shown, lambda dag: True, False).jobs] == ["", "interactive"]
    assert without_tasks(shown, lambda dag: True, True).jobs == shown.jobs


def test_a_file_that_goes_while_old_ones_are_looked_for_is_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    # More than a pipe holds, so that some are looked at after others were told.
    for number in range(1000):
        (folder / f"{number:0200}").touch()
        os.utime(folder / f"{number:0200}", (0, 0))
    command = OldFiles().command()
    with subprocess.Popen(command.argv, cwd=tmp_path, stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        told = looking.stdout.read(1)
        shutil.rmtree(folder)
        told += looking.stdout.read()
    assert OldFiles().read(CommandOutput(looking.returncode, told, b""))
