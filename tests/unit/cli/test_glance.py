"""The commands that look at a cluster: what they print, and how they end."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.cli import glance
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests import Accounting, JobDetail, ListJobs, ListNodes, ListReservations
from airflow_provider_soperator.slurm.states import JobState, NodeState

NOW = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)
DRAINED = NodeState.parse("IDLE+DRAIN")
PICTURE = Picture(
    connection="c",
    taken=NOW,
    nodes=(
        Node(name="worker-0", state=NodeState.parse("MIXED"), gres="gpu:8", gres_used="gpu:8"),
        Node(
            name="worker-1",
            state=NodeState.parse("IDLE+DRAIN"),
            reason="[hardware_problem] gpu\x1b[31m",
            reason_since=NOW,
        ),
        Node(name="worker-2", state=DRAINED, reason="airflow:nightly: tested", reason_since=NOW),
    ),
    jobs=(
        Job(
            id=JobId(7),
            name="x",
            user="ann",
            state=JobState.parse("RUNNING"),
            nodelist="worker-0",
            started=NOW,
            tres="gres/gpu=8",
            time_limit=timedelta(hours=2),
        ),
        Job(id=JobId(8), name="by hand", state=JobState.parse("PENDING"), reason="JobHeldUser"),
    ),
    reservations=(Reservation(name="airflow-handover-1", nodelist="worker-0"),),
    tasks={JobId(7): JobTasks(dag_id="train", run_id="r", task_id="fit")},
)


def printed(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    picture: Picture = PICTURE,
    **more: Any,
) -> list[dict[str, Any]]:
    async def take(connection: str, before: Picture | None = None) -> Picture:
        assert connection == "c"
        return picture

    monkeypatch.setattr(glance, "take", take)
    given = {"conn_id": "c", "output": "json", "search": "", "state": "active", "watch": False}
    getattr(glance, name)(argparse.Namespace(**(given | more)))
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_jobs_have_their_task_or_say_why_they_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = printed("jobs", monkeypatch, capsys)
    assert (first["job"], first["task"], first["gpus"], first["limit"]) == ("7", "train › fit", "8", "2:00:00")
    assert (second["task"], second["why"]) == ("by hand", "its owner holds it (JobHeldUser)")
    assert [row["job"] for row in printed("jobs", monkeypatch, capsys, state="pending")] == ["8"]
    assert [row["job"] for row in printed("jobs", monkeypatch, capsys, search="train")] == ["7"]


def test_nodes_have_their_jobs_and_who_has_drained_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, _, tested = printed("nodes", monkeypatch, capsys)
    assert (busy["state"], busy["gpus"], busy["jobs"]) == ("busy", "8/8", ["7"])
    assert (tested["state"], tested["by"], tested["since"]) == ("drained", "nightly", "2026-11-24T08:00:00+00:00")


def test_health(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [finding] = printed("health", monkeypatch, capsys)
    assert (finding["node"], finding["finding"]) == ("worker-1", "hardware_problem")
    monkeypatch.setattr(glance, "picture_of", lambda args, *needed: Picture(connection="c", taken=NOW))
    glance.health(argparse.Namespace(output="table"))
    assert capsys.readouterr().out == "Slurm has nothing against any node\n"


def test_what_others_have_written_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "[/bold] :smile: \x1b[31m"
    hostile = dataclasses.replace(PICTURE, jobs=(dataclasses.replace(PICTURE.jobs[1], name=name),))
    monkeypatch.setattr(glance, "picture_of", lambda args, *needed: hostile)
    glance.jobs(argparse.Namespace(output="table", search="", state="active"))
    assert "[/bold] :smile: ?[31m" in capsys.readouterr().out
    glance.nodes(argparse.Namespace(output="table"))
    assert "[hardware_problem] gpu" in capsys.readouterr().out


def test_the_board_has_all_at_a_glance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(row["part"], row["what"], row["state"]) for row in printed("board", monkeypatch, capsys)]
    assert rows[1:] == [
        ("nodes", "worker (3)", "2 drained, 1 busy; 8 of 8 GPUs in use"),
        ("queue", "running", "1 job, 8 GPUs"),
        ("queue", "pending", "1 job, 0 GPUs"),
        ("queue", "1 wait", "its owner holds it (JobHeldUser)"),
        ("health", "worker-1", rows[5][2]),
        ("held", "drain of worker-2", "by nightly: tested"),
        ("held", "reservation airflow-handover-1 of worker-0", "by airflow-handover-1"),
    ]


def test_files_that_are_left_have_no_owner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    left = Picture(connection="c", taken=NOW, files=("/root/.airflow-soperator/aaaaaaaaaaaa.zip",))
    *_, held = printed("board", monkeypatch, capsys, left)
    assert held["state"] == "no job in the queue is of these calls"


def test_what_cannot_be_read_ends_the_command_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Picture(
        connection="c", taken=NOW, jobs=PICTURE.jobs, failures={"nodes": "No answer.", "tasks": "No answer."}
    )
    assert len(printed("jobs", monkeypatch, capsys, broken)) == 2
    with pytest.raises(SystemExit) as end:
        printed("nodes", monkeypatch, capsys, broken)
    assert end.value.code == 1
    assert capsys.readouterr().err == "Not read: nodes, tasks. No answer.\n"


def test_one_who_watches_sees_an_outage_and_what_was_known_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("config", "nodes", "jobs", "reservations", "files", "tasks")
    away = Picture(connection="c", taken=NOW, failures=dict.fromkeys(parts, "No answer."))
    later = dataclasses.replace(PICTURE, failures=away.failures, since=dict.fromkeys(parts, NOW))
    seen, before = [away, PICTURE, later], []

    async def take(connection: str, last: Picture | None = None) -> Picture:
        before.append(last)
        return seen[len(before) - 1]

    def sleep(seconds: float) -> None:
        if len(before) == len(seen):
            raise KeyboardInterrupt

    monkeypatch.setattr(glance, "take", take)
    monkeypatch.setattr("time.sleep", sleep)
    # In the order in which a terminal gets it.
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    with pytest.raises(SystemExit):
        glance.board(argparse.Namespace(conn_id="c", output="plain", watch=True))
    assert before == [None, away, PICTURE]
    start, first, _, last = capsys.readouterr().out.split("\033[2J\033[H")
    told = f"Not read: {', '.join(parts)}. No answer."
    assert (start, first.splitlines()[0]) == ("", told)
    assert "queue" not in first
    assert last.splitlines()[0] == f"{told} What is shown of it is as of 2026-11-24T08:00:00+00:00."
    assert "1 job, 8 GPUs" in last


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(SystemExit, match="'abc' is not a Slurm job id"):
        glance.why(argparse.Namespace(conn_id="c", job="abc", output="table"))


class Hook:
    """A connection to a cluster that has some jobs and answers nothing else: it is asked at once, or not at all."""

    def __init__(self, *jobs: Job, asks_for: str = "", reservations: Sequence[Reservation] = ()) -> None:
        self.jobs, self.asks_for, self.reservations = jobs, asks_for, reservations

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[Hook]:
        yield self

    async def ask_now(self, request: Any) -> Any:
        if isinstance(request, Accounting):
            return ()
        if isinstance(request, ListJobs) and self.jobs:
            return self.jobs
        if isinstance(request, JobDetail) and self.asks_for:
            return f"JobId=8 JobName=x\n   ReqNodeList={self.asks_for} ExcNodeList=(null)\n"
        if isinstance(request, ListNodes) and self.asks_for:
            return [node for node in PICTURE.nodes if node.name in request.names]
        if isinstance(request, ListReservations) and self.reservations:
            return self.reservations
        raise SlurmError("not now", "scontrol")


def test_why_tells_of_an_outage_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "SlurmHook", lambda connection: Hook())
    with pytest.raises(SystemExit, match="scontrol: not now"):
        glance.why(argparse.Namespace(conn_id="c", job="7", output="table"))


def why(job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    failed = Job(id=JobId(9), state=JobState.parse("FAILED"), raw_id=9)
    monkeypatch.setattr(glance, "SlurmHook", lambda connection: Hook(*PICTURE.jobs, failed))
    glance.why(argparse.Namespace(conn_id="c", job=job, output="table"))
    return capsys.readouterr().out


def test_why_a_job_waits_or_how_it_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert why("8", monkeypatch, capsys) == (
        "Job 8 is PENDING (JobHeldUser).\n8 waits: its owner holds it (JobHeldUser).\n"
    )
    assert why("7", monkeypatch, capsys) == "Job 7 is RUNNING on worker-0.\n"
    told = why("9", monkeypatch, capsys)
    assert told.startswith("Job 9 is FAILED.\nDiagnosis of job 9\n")
    assert "not available: " in told
    with pytest.raises(SystemExit, match="The cluster has no job 99, neither in the queue nor in accounting"):
        why("99", monkeypatch, capsys)


def test_why_names_the_nodes_that_a_job_asks_for_and_cannot_get(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
    job = Job(id=JobId(8), state=JobState.parse("PENDING"), reason=reason)
    monkeypatch.setattr(glance, "SlurmHook", lambda connection: Hook(job, asks_for="worker-[0-1]"))
    glance.why(argparse.Namespace(conn_id="c", job="8", output="table"))
    # One of them is well.
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("  worker-1: ")
    assert "[hardware_problem] gpu" in last
    assert "\x1b" not in last
    elements = (
        Job(id=JobId.parse("8_0"), state=JobState.parse("RUNNING"), nodelist="worker-0"),
        dataclasses.replace(job, id=JobId.parse("8_[1-3]")),
    )
    monkeypatch.setattr(glance, "SlurmHook", lambda connection: Hook(*elements, asks_for="worker-[0-1]"))
    glance.why(argparse.Namespace(conn_id="c", job="8", output="table"))
    assert capsys.readouterr().out.splitlines()[-1] == last
    monkeypatch.setattr(glance, "SlurmHook", lambda connection: Hook(job, asks_for="(null)"))
    glance.why(argparse.Namespace(conn_id="c", job="8", output="table"))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_why_names_the_reservations_that_a_job_has_to_be_over_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = datetime.now(timezone.utc) + timedelta(hours=1)
    job = Job(
        id=JobId(8),
        state=JobState.parse("PENDING"),
        reason="ReqNodeNotAvail,_May_be_reserved_for_other_job",
        time_limit=timedelta(hours=2),
    )
    reserved = (
        Reservation(name="upgrade", nodelist="worker-[0-3]", start=start, end=start, comment="night (gpu_shifts)"),
        # Not in the way: of other nodes; of a time when the job has ended, as a lease is; and the job's own.
        Reservation(name="other", nodelist="worker-3", start=start),
        Reservation(name="lease", nodelist="worker-0", start=start + timedelta(hours=2)),
        Reservation(name="own", nodelist="worker-0", start=start),
    )

    def told(job: Job) -> list[str]:
        monkeypatch.setattr(glance, "SlurmHook", lambda _: Hook(job, asks_for="worker-[0-1]", reservations=reserved))
        glance.why(argparse.Namespace(conn_id="c", job="8", output="table"))
        return capsys.readouterr().out.splitlines()[2:]

    drained, found = told(dataclasses.replace(job, reservation="own"))
    assert drained.startswith("  worker-1: ")
    when = f"{start:%Y-%m-%d %H:%M:%S}"
    assert found == f"  reservation upgrade of worker-[0-3], {when} to {when}, night (gpu_shifts)"
    # Slurm takes no limit for a year.
    unlimited = told(dataclasses.replace(job, time_limit=NoDuration.UNLIMITED))
    assert [line.split()[1] for line in unlimited[1:]] == ["upgrade", "lease", "own"]
