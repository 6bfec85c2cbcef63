"""Advice for a DAG: a month is read from its connections or from files, and what is missing is told with its remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.capacity import advice
from airflow_provider_soperator.capacity.replay import ReplayOutcome
from airflow_provider_soperator.cli import advise
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob
from airflow_provider_soperator.slurm.requests.accounting import ListUsage
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.transports.transport_errors import Unreachable
from tests.unit.capacity.test_month import PRINTED, START
from tests.unit.cli.calls import called

DAG = """
from datetime import timedelta

from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import MetricLoad, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

dag = capacity_dag(
    "nights",
    CapacitySchedule(
        timezone="Europe/Amsterdam",
        windows=[Window("daily 20:00 - 08:00", {"training": 4, "inference": 0}, name="night")],
        otherwise={"training": 1, "inference": 3},
        gpus_per_unit={"training": 8, "inference": 8},
        limit=32,
    ),
    [
        SlurmNodesTarget(name="training", nodes="worker-[0-3]", slurm_conn_id="gpus"),
        NebiusNodeGroupTarget(name="inference", node_group="group-a"),
    ],
    "capacityblockgroup-a",
    demand=DEMAND,
    shift_args={"mode": "force", "transfer": timedelta(minutes=12)},
)
"""
SERVICE = 'ServiceLoad(target="inference", arrivals="requests", service_time=4.0, max_requests=32)'
OTHER = 'NebiusNodeGroupTarget(name="training", node_group="group-b")'


def written(folder: Path, demand: str = f"Demand([{SERVICE}], observe=True)", **other: str) -> str:
    text = DAG.replace("DEMAND", demand)
    for said, instead in other.items():
        text = text.replace(said, instead)
    file = folder / "nights.py"
    file.write_text(text)
    return str(file)


def files(folder: Path, days: float = 14) -> list[str]:
    """A month in files."""
    jobs, requests = folder / "jobs.txt", folder / "requests.json"
    jobs.write_text(PRINTED)
    values = [[START + 1800 * number, "20"] for number in range(int(days * 48) + 1)]
    requests.write_text(json.dumps({"data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}))
    return ["--jobs", str(jobs), "--requests", str(requests)]


@pytest.fixture(autouse=True)
def few_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    made = advice.proposals
    monkeypatch.setattr(advice, "proposals", lambda *given: [made(*given)[number] for number in (0, 8)])


def test_a_month_of_files_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ("advise", written(tmp_path), *files(tmp_path))
    found = called(capsys, *call)
    assert found.status == 0
    assert "Replaying 6 jobs of 14.0 days from 2026-11-26 02:20" in found.err
    lines = found.out.splitlines()
    assert lines[0] == (
        "4 nodes with 8 GPUs; a machine needs 12 min from one side to the other; 50% of the jobs may be requeued"
    )
    assert " ".join(lines[2].split()) == ("GPUs in use jobs wait below target moves a day requeued against as it is")
    assert {line.partition("  ")[0] for line in lines[3:6]} == {"fixed split", "demand, headroom 1", "as it is"}
    # At night it serves nothing.
    assert lines[5].startswith("as it is ")
    assert lines[5].endswith("usage +0%, wait ×1.00")
    assert advice.RULE in lines[8]
    names: dict[str, Any] = {}
    exec("from " + found.out.partition("\n\nfrom ")[2], names)
    assert names["schedule"].timezone == "Europe/Amsterdam"
    assert names["schedule"].limit == 32
    more = f'Demand([{SERVICE}, MetricLoad(target="inference", query="waiting", per_unit=8)])'
    found = called(capsys, *("advise", written(tmp_path, more), *call[2:], "--nodes", "8", "--transfer", "3", "--json"))
    assert "Not replayed, and in no proposal: MetricLoad(target='inference', query='waiting'" in found.err
    rows = found.rows
    assert {row["proposal"] for row in rows} == {"fixed split", "demand, headroom 1", "as it is"}
    assert all({"usage", "wait", "below", "moves"} <= row[part].keys() for row in rows for part in ("made_of", "after"))
    [demand] = [row["code"] for row in rows if row["proposal"] == "demand, headroom 1"]
    assert "limit=64" in demand
    assert 'QueueLoad(target="training", min_work=timedelta(minutes=12), slurm_conn_id="gpus")' in demand


class Cluster:
    """A cluster whose accounting has a job each day, one for two days, and one on nodes of others."""

    def __init__(self) -> None:
        self.asked: list[ListUsage] = []

    def ask(self, request: ListUsage) -> list[AccountingJob]:
        self.asked.append(request)
        assert request.since
        number = len(self.asked)
        return [
            self._job(1, request.since if number == 1 else self.asked[0].since, timedelta(days=2)),
            self._job(100 + number, request.since, timedelta(hours=1)),
            self._job(200 + number, request.since, timedelta(hours=1), "worker-[4-7]"),
        ][1 if number > 2 else 0 :]

    def _job(self, number: int, at: datetime | None, ran: timedelta, nodes: str = "worker-[2-4]") -> AccountingJob:
        return AccountingJob(
            id=JobId(number),
            state=JobState.parse("COMPLETED"),
            submitted=at,
            eligible=at,
            started=at,
            elapsed=ran,
            nodelist=nodes,
            tres="gres/gpu=8",
        )


def test_a_month_of_the_connections_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, spans = Cluster(), list[tuple[datetime, datetime]]()

    @contextmanager
    def client(hook: Any) -> Iterator[Cluster]:
        assert hook.slurm_conn_id == "gpus"
        yield cluster

    async def query_range(hook: Any, query: str, since: datetime, until: datetime, step: timedelta) -> Any:
        assert (hook.prometheus_conn_id, query) == ("prometheus_default", "requests")
        spans.append((since, until))
        times = range(int(since.timestamp()), int(until.timestamp()) + 1, int(step.total_seconds()))
        assert len(times) <= 11_000
        return {"resultType": "matrix", "result": [{"metric": {}, "values": [[at, "20"] for at in times]}]}

    monkeypatch.setattr(advise.SlurmHook, "client", client)
    monkeypatch.setattr(advise.PrometheusHook, "query_range", query_range)
    found = called(capsys, "advise", written(tmp_path), "--days", "15")
    assert found.status == 0
    assert spans[0][1] == spans[1][0]
    assert spans[-1][1] - spans[0][0] == timedelta(days=15)
    for one, following in zip(cluster.asked, cluster.asked[1:], strict=False):
        assert one.until == following.since
    assert all(one.everyone and one.until - one.since <= timedelta(days=1) for one in cluster.asked)  # type: ignore[operator]
    assert cluster.asked[0].since == spans[0][0]
    assert datetime.now(timezone.utc) - cluster.asked[-1].until < timedelta(minutes=5)  # type: ignore[operator]
    # A minute more is a day more.
    assert f"Replaying {1 + len(cluster.asked)} jobs of 15.0 days" in found.err


@pytest.mark.parametrize(
    ("demand", "other", "words", "said"),
    [
        ("None", {}, [], "DAG nights has no demand, so that it is unknown what its service needs: give it demand="),
        ('Demand([QueueLoad(target="training")])', {}, [], "no load of inference says what is of use"),
        ('Demand([MetricLoad(target="inference", query="busy", keep_at=0.7)])', {}, [], "a MetricLoad with per_unit"),
        (f"Demand([{SERVICE.replace('4.0', repr('seconds'))}])", {}, [], "service_time is a query"),
        (
            None,
            {'SlurmNodesTarget(name="training", nodes="worker-[0-3]", slurm_conn_id="gpus")': OTHER},
            [],
            "one service",
        ),
        (None, {'"inference": 8}': '"inference": 4}'}, [], "those of nights have 8 and 4"),
        (None, {}, ["--days", "7"], "advice needs 14 days, got 7"),
        (None, {}, ["--nodes", "1"], "give --nodes of 2 or more"),
        (None, {}, ["--jobs", "/nowhere"], "No such file"),
        (None, {}, ["--requests", "/nowhere"], "No such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    demand: str | None,
    other: dict[str, str],
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = written(tmp_path, **({"demand": demand} if demand else {}), **other)
    status = called(capsys, "advise", file, *files(tmp_path), *words).status
    assert said.lower() in str(status).lower()


def test_too_few_days_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = called(capsys, "advise", written(tmp_path), *files(tmp_path, days=9)).status
    assert "advice needs 14 days of requests, and" in str(status).lower()
    assert "has 9.0" in str(status)


def test_what_does_not_answer_is_replaced_by_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Without:
        def ask(self, request: ListUsage) -> Any:
            raise AccountingDisabled("Slurm accounting storage is disabled", "sacct")

    @contextmanager
    def client(hook: Any) -> Iterator[Without]:
        yield Without()

    async def query_range(*given: Any) -> Any:
        raise Unreachable("Prometheus does not answer", "check the address")

    monkeypatch.setattr(advise.SlurmHook, "client", client)
    monkeypatch.setattr(advise.PrometheusHook, "query_range", query_range)
    file, given = written(tmp_path), files(tmp_path)
    assert "Or give them as a file, with --requests." in str(called(capsys, "advise", file, *given[:2]).status)
    assert "Or give them as a file, with --jobs." in str(called(capsys, "advise", file, *given[2:]).status)


def test_a_time_without_jobs_and_requests_changes_nothing() -> None:
    now: Any = SimpleNamespace(name="as it is")
    nothing = ReplayOutcome(usage=0.0, wait=0.0, below=0.0, moves=0.0, requeued=0, lost=0.0, limbo=0.0)
    *_, row = advise._table([advice.JudgedProposal(now, nothing, nothing)], now)
    assert row.endswith("usage +0%, wait ×1.00")
