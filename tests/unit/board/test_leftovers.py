"""What DAGs have left on a cluster, and who may need it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.board.leftovers import left_overs
from airflow_provider_soperator.board.picture import Picture, without_tasks
from airflow_provider_soperator.capacity.targets.protocol import SessionContext
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.files import RemoveFiles
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.work.targets import TargetScaling
from tests.unit.board.test_wall import node

SINCE = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)


def picture(**more: Any) -> Picture:
    return Picture(connection="c", taken=SINCE, **more)


def test_what_dags_hold_is_told_by_owner() -> None:
    held = [
        node(f"worker-{number}", "IDLE+DRAIN", reason="airflow:nc_f: tested", reason_since=SINCE)  # type: ignore[arg-type]
        for number in (1, 2)
    ]
    replaced = node("worker-5", "IDLE+DRAIN", reason="[hardware_problem] airflow:nights: NVLink")
    [drain] = left_overs(picture(nodes=(replaced,)))
    assert (drain.what, drain.owner, drain.why) == ("drain of worker-5", "nights", "NVLink")
    others = [node("worker-3", "IDLE+DRAIN", reason="disk swap"), node("worker-4", reason="airflow:old: undrained")]
    reserved = [
        Reservation(name="airflow-handover-1", nodelist="worker-7"),
        Reservation(name="maintenance", nodelist="all"),
    ]
    [drain, reservation] = left_overs(picture(nodes=(*held, *others), reservations=tuple(reserved)))
    assert (drain.what, drain.owner, drain.why, drain.since) == ("drain of worker-[1-2]", "nc_f", "tested", SINCE)
    assert reservation.what == "reservation airflow-handover-1 of worker-7"


def test_the_user_who_has_drained_a_node_by_hand_is_not_taken_for_a_dag() -> None:
    reasons = ("airflow:cluster: new driver (ann)", "airflow:capacity/b-1: night (gpu_shifts)")
    nodes = [node(f"worker-{number}", "IDLE+DRAIN", reason=reason) for number, reason in enumerate(reasons)]
    assert [one.dag_id for one in left_overs(picture(nodes=tuple(nodes)))] == ["cluster", "gpu_shifts"]


class Opened:
    """A target that keeps for what it is opened."""

    @asynccontextmanager
    async def open(self, purpose: SessionContext, clients: Any, log: Any) -> AsyncIterator[None]:
        self.purpose = purpose
        yield


def test_what_a_task_has_scaled_is_of_its_dag() -> None:
    async def opened(target: Any) -> SessionContext:
        where = {"block": "b-1", "nebius_conn_id": "n", "key": "nights/manual__1/scale/-1"}
        work = TargetScaling(target=target, units=2, mode="asap", since=SINCE, deadline=SINCE, **where)
        async with work.begin(logging.getLogger(__name__)).open():
            return target.purpose

    reason = str(DrainReason("capacity/b-1", asyncio.run(opened(Opened())).why))
    [drain] = left_overs(picture(nodes=(node("worker-1", "IDLE+DRAIN", reason=reason),)))
    assert (drain.dag_id, drain.why) == ("nights", "Airflow: manual__1/scale/-1 (nights)")
    said = "The DAG nights moves capacity, and keeps nodes drained between its runs."
    assert drain.need({"nights": False}) == ("yes", said)
    assert drain.need({"nights": True}).said == "A run of the DAG nights is under way, and may need it."


def test_an_old_file_is_left_over_if_no_job_in_the_queue_is_of_its_call() -> None:
    files = tuple(f"/root/.airflow-soperator/{key}.zip" for key in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"))
    jobs = (Job(id=JobId(7), name="x.af-aaaaaaaaaaaa"),)
    [left] = left_overs(picture(jobs=jobs, files=files))
    assert (left.what, left.need({}).at_work) == (f"file {files[1]}", "no")
    assert (left.names, left.form) == ({files[1], "/root/.airflow-soperator"}, {"name": files[1]})
    # An unread queue says nothing of jobs.
    assert left_overs(picture(files=files, failures={"jobs": "away"})) == []


def test_the_file_of_a_mapped_call_is_of_an_element_of_an_array() -> None:
    files = tuple(f"/root/.airflow-soperator/aaaaaaaaaaaa_{element}.zip" for element in range(4))
    jobs = tuple(Job(id=JobId.parse(text), name="x.af-aaaaaaaaaaaa") for text in ("9_0", "9_[2-3]"))
    [left] = left_overs(picture(jobs=jobs, files=files))
    assert left.files == (files[1],)


def test_no_file_of_a_job_is_left_over_for_one_who_may_not_know_its_name() -> None:
    job = Job(id=JobId(7), name="x.af-aaaaaaaaaaaa")
    whole = picture(jobs=(job,), files=("/root/.airflow-soperator/aaaaaaaaaaaa.zip",))
    assert left_overs(without_tasks(whole, lambda dag: False, sees_unknown=False)) == []


def test_old_files_are_called_by_their_folder_and_one_by_one() -> None:
    folder = "/root/.airflow-soperator"
    files = tuple(f"{folder}/{key}.zip" for key in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"))
    [left] = left_overs(picture(files=files))
    assert (left.what, left.form) == (f"2 files in {folder}", {"name": folder})
    assert left.of({folder}) == left
    one = left.of({files[1]})
    assert (one.what, one.release) == (f"file {files[1]}", RemoveFiles((files[1],)))
    assert left.is_meant({"name": folder})
    assert not left.is_meant({"name": f"{folder}/cccccccccccc.zip"})
