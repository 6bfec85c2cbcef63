"""Mapped tasks whose jobs go as an array to a real Slurm: each is its own, from its submission to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_soperator.functions import call
from airflow_provider_soperator.slurm.errors import SubmissionWithdrawn
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.slurm.requests.submission import CancelWithdrawn, SubmitOnce, Submitted, Withdraw
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger
from tests.contract.transports import Way
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.fire import DRAINED, let_nothing_start, over_ssh

pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("jobs", "drains")]


class FanOut:
    """A mapped task and its tries."""

    def __init__(self, conn_id: str, **job: Any) -> None:
        self._conn_id, self._job, self._run = conn_id, job, uuid4().hex

    def key(self, index: int, number: int = 1) -> SubmissionKey:
        return SubmissionKey.derive("fan-out", self._run, "fit", 0, number, element=index)

    def fields(self, index: int) -> dict[str, Any]:
        files = {"output": f"fan-out/{self._run}/fit.{index}-%j.out"}
        return {"name": f"fit.{index}.fan-out", "partition": "main", "args": [str(index)], **files, **self._job}

    def job(self, index: int) -> BatchJob:
        return BatchJob(**self.fields(index) | {"name": self.key(index).name(f"fit.{index}.fan-out")})

    def trigger(self, index: int, tries: int = 1) -> SbatchTrigger:
        keys = [self.key(index, number).text for number in range(1, tries + 1)]
        return SbatchTrigger(self._conn_id, self.fields(index), keys, poll_interval=0.5)

    def reports(self, indices: Iterable[int], tries: int = 1) -> list[dict[str, Any]]:
        async def all_of_them() -> list[dict[str, Any]]:
            events = await asyncio.gather(*(self.trigger(index, tries).event() for index in indices))
            return [event["result"] for event in events]

        return asyncio.run(all_of_them())


def test_each_has_its_own_end_output_and_retry(connections: Connections, cluster: Cluster) -> None:
    # The second try of one that has failed ends well.
    script = '#!/bin/bash\necho "this is $1"\nif [ "$1" = 2 ]; then mkdir "failed-once" && exit 3 || exit 0; fi\n'
    folder = f"/root/{uuid4().hex}"
    cluster.run("mkdir", folder)
    fan_out = FanOut(connections.login_node().slurm_conn_id, script=script, chdir=folder)
    first = fan_out.reports(range(6))
    numbers = {JobId.parse(report["job_id"]).job for report in first}
    assert [report["job_id"] for report in first] == [f"{number}_{index}" for number in numbers for index in range(6)]
    assert [report["state"] for report in first] == ["COMPLETED"] * 2 + ["FAILED"] + ["COMPLETED"] * 3
    assert [report["exit_code"] for report in first][2] == "3:0"
    for index, report in enumerate(first):
        assert report["output"].endswith(f"/fit.{index}-{report['raw_id']}.out")
        assert cluster.run("cat", report["output"]) == f"this is {index}\n"
    second = fan_out.reports(range(6), tries=2)
    assert second[2]["state"] == "COMPLETED"
    assert second[2]["job_id"] != first[2]["job_id"]
    assert [one["job_id"] for one in second if one is not second[2]] == [
        one["job_id"] for one in first if one is not first[2]
    ]


def square(number: int) -> None:
    print(number**2)


class Functions(FanOut):
    def fields(self, index: int) -> dict[str, Any]:
        script = call.script(square, (index,), {}, name=self.key(index).text)
        return super().fields(index) | {"script": script, "args": []}


def test_functions_go_as_one_array(connections: Connections, cluster: Cluster) -> None:
    folder = f"/root/{uuid4().hex}"
    cluster.run("mkdir", folder)
    found = Functions(connections.login_node().slurm_conn_id, chdir=folder).reports(range(20))
    assert len({JobId.parse(report["job_id"]).job for report in found}) == 1
    assert [cluster.run("cat", report["output"]) for report in found] == [f"{index**2}\n" for index in range(20)]


def test_a_kill_ends_one_and_no_other(connections: Connections, cluster: Cluster) -> None:
    fan_out = FanOut(connections.login_node().slurm_conn_id, script="#!/bin/bash\nexec sleep 300\n")

    async def kill_one() -> None:
        triggers = [fan_out.trigger(index) for index in range(3)]
        begun = [asyncio.ensure_future(trigger.event()) for trigger in triggers]
        running = "RUNNING RUNNING RUNNING"
        while (await asyncio.to_thread(states)) != running:
            await asyncio.sleep(0.2)
        for index, left in ((1, "RUNNING RUNNING"), (0, "RUNNING"), (2, "")):
            begun[index].cancel()
            await asyncio.wait([begun[index]])
            await triggers[index].on_kill()
            while (await asyncio.to_thread(states)) != left:
                await asyncio.sleep(0.2)

    def states() -> str:
        said = cluster.run("squeue", "--noheader", "--format=%T", f"--name={fan_out.key(0).shared.name('fit.fan-out')}")
        return " ".join(sorted(said.split()))

    asyncio.run(kill_one())


@pytest.fixture
def way(cluster: Cluster) -> Iterator[Way]:
    let_nothing_start(cluster)
    way = over_ssh(cluster)
    way.ask(Ping())
    yield way
    way.close()


def elements(answers: Iterable[Submitted]) -> list[int | None]:
    return [one.id.element if one.id else None for one in answers]


def test_each_is_submitted_once_and_can_be_withdrawn(way: Way, cluster: Cluster) -> None:
    fan_out = FanOut("", command="true", args=[], nodelist=DRAINED)
    jobs = [fan_out.job(index) for index in range(20)]
    first = way.ask(SubmitOnce(jobs=(*jobs[3:6], jobs[10])))
    assert elements(first) == [3, 4, 5, 10]
    all_of_them = way.ask(SubmitOnce(jobs=tuple(jobs)))
    assert elements(all_of_them) == [*range(20)]
    assert [one.adopted for one in all_of_them] == [index in (3, 4, 5, 10) for index in range(20)]
    assert len({one.id.job for one in all_of_them if one.id}) == 2
    # Accounting alone knows those that have left the queue.
    shared = fan_out.key(0).shared.name("fit.fan-out")
    past = ("sacct", "--noheader", "--allocations", "--format=JobID%40", f"--name={shared}", "--starttime=now-1hour")
    cluster.wait("accounting has both", lambda: len(cluster.run(*past).split()) >= 2)
    cluster.run("scancel", f"--name={shared}")
    cluster.wait("they have ended", lambda: not cluster.active_jobs())
    # One whose process was told to end it, and did not live to do that.
    withdrawn = FanOut("", command="true", args=[], nodelist=DRAINED)
    there = way.ask(SubmitOnce(jobs=tuple(withdrawn.job(index) for index in range(4))))
    number = there[0].id.job if there[0].id else 0
    rows = ("squeue", "--noheader", "--array", "--format=%i", f"--jobs={number}")
    way.ask(Withdraw((withdrawn.key(1),)))
    way.ask(CancelWithdrawn())
    assert sorted(cluster.run(*rows).split()) == [f"{number}_{index}" for index in (0, 2, 3)]
    way.ask(Withdraw((withdrawn.key(3),)))
    way.ask(SubmitOnce(jobs=(FanOut("", command="true", args=[], nodelist=DRAINED).job(7),)))
    assert sorted(cluster.run(*rows).split()) == [f"{number}_0", f"{number}_2"]
    again = way.ask(SubmitOnce(jobs=tuple(withdrawn.job(index) for index in range(4))))
    assert not any(isinstance(one.error, SubmissionWithdrawn) for one in again)
