"""How runs of checks are begun, found again and told of, over checks that are made up."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from airflow_provider_soperator.health.figures import PATTERNS
from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.files import FileError, FilePiece, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.slurm.states import JobState, NodeState
from airflow_provider_soperator.soperator.active_checks import CheckSeen, LastRun, RunSeen, find
from airflow_provider_soperator.soperator.check_results import CheckResult, JobEnd, RunState
from airflow_provider_soperator.triggers.events import ActiveCheckFailedTrigger
from airflow_provider_soperator.triggers.work import WorkTrigger
from airflow_provider_soperator.work.checks import CheckClients, CheckRun, CheckWatch
from airflow_provider_soperator.work.protocols import Look, Work, WorkFailed
from tests.unit.soperator.active_checks import NOW, active_check, ago, job

WHERE = ClusterConnections("kubernetes_default", "soperator")
BEGAN = datetime.now(timezone.utc) - timedelta(hours=1)
LOG: Any = logging.getLogger(__name__)
KEYS = ("q6befiawjvkz", "r7cfgjbxkwla")
FIRST, SECOND = (f"gpu-checks-airflow-{key}" for key in KEYS)


class MadeUp:
    """A check with runs whose ends the test decides on."""

    def __init__(self) -> None:
        self.check = CheckSeen(name="gpu-checks", is_of_slurm=True)
        self.seen: dict[str, RunSeen] = {}
        self.started: list[str] = []
        #: Begun by somebody else in the same moment.
        self.rival = ""
        self.objects = SimpleNamespace(max_age=30.0)

    def add(self, name: str, *, minutes: int = 0, **fields: Any) -> RunSeen:
        at = BEGAN + timedelta(minutes=minutes)
        run = RunSeen(name=name, uid=name, check="gpu-checks", created=at, **fields)
        self.seen[name] = run
        return run

    def ends(self, name: str, state: RunState, *, noted: bool = True) -> None:
        """The run has ended so, as Soperator has noted it."""
        self.seen[name] = replace(
            self.seen[name], end="Complete", slurm_jobs=("7",), finished=datetime.now(timezone.utc)
        )
        if noted:
            failed = (JobEnd(job_id="7", state="FAILED"),) if state is RunState.FAILED else ()
            self.check = replace(self.check, last=LastRun(outcome=CheckResult(state=state, jobs=failed), slurm_job="7"))

    # As ActiveChecks

    async def list_all(self) -> tuple[CheckSeen, ...]:
        return (self.check,)

    async def find(self, said: str) -> CheckSeen:
        return find([self.check], said, "soperator")

    async def runs(self) -> tuple[RunSeen, ...]:
        return tuple(self.seen.values())

    async def start(self, check: CheckSeen, name: str, owner: str) -> RunSeen:
        self.started.append(name)
        if self.rival:
            self.add(self.rival, minutes=10)
        return self.add(name, minutes=10)

    async def end(self, run: str) -> None:
        del self.seen[run]


@pytest.fixture
def checks() -> MadeUp:
    return MadeUp()


def work_of(keys: tuple[str, ...] = KEYS, **fields: Any) -> CheckRun:
    return CheckRun(
        where=WHERE,
        check="gpu-checks",
        keys=keys,
        task="a/task",
        **{"since": BEGAN, "deadline": BEGAN + timedelta(days=1), **fields},
    )


def run_of(keys: tuple[str, ...] = KEYS, **fields: Any) -> CheckRun:
    return work_of(keys, **fields).begin(LOG)


def step(run: CheckRun, checks: MadeUp) -> Any:
    made_up: Any = checks
    return asyncio.run(run.step(CheckClients(made_up)))


def test_a_run_is_begun_once_and_followed_to_its_end(checks: MadeUp) -> None:
    run = run_of()
    assert step(run, checks) is None
    assert step(run, checks) is None
    checks.ends(SECOND, RunState.FAILED, noted=False)
    assert step(run, checks) is None
    checks.ends(SECOND, RunState.FAILED)
    result = step(run, checks)
    assert (result["job"], result["state"], result["words"]) == (SECOND, "Failed", "Failed: job 7 (FAILED)")
    assert checks.started == [SECOND]


@pytest.mark.parametrize(
    ("state", "started"),
    [(RunState.IN_PROGRESS, []), (RunState.COMPLETE, []), (RunState.FAILED, [SECOND]), (RunState.CANCELLED, [SECOND])],
)
def test_what_a_try_before_has_left_is_gone_on_with_unless_it_failed(
    checks: MadeUp, state: RunState, started: list[str]
) -> None:
    checks.add(FIRST)
    checks.ends(FIRST, state)
    step(run_of(), checks)
    assert checks.started == started


class Nodes:
    """A Slurm that has some nodes, and notes the orders that it is given."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.orders: list[Any] = []

    async def ask(self, request: Any) -> Any:
        if isinstance(request, ListNodes):
            return self.nodes
        self.orders.append(request)
        return None


def node(number: int, state: str = "IDLE", reason: str = "", **fields: Any) -> Node:
    return Node(name=f"worker-{number}", state=NodeState.parse(state), reason=reason, **fields)


def drains(
    nodes: Iterable[Node], failing: Iterable[str], max_drained: int | str = "10%", state: str = "FAILED"
) -> list[str]:
    slurm: Any = Nodes(*nodes)
    run = run_of(drain_reason="airflow:night: gpu-checks failed", max_drained=max_drained)
    failed = JobEnd(job_id="7", state=state, nodes=tuple(failing), ended=BEGAN)
    asyncio.run(run._drain(slurm, CheckResult(state=RunState.FAILED, jobs=(failed,))))
    return [name for order in slurm.orders for name in order.names]


TWENTY = [node(number) for number in range(20)]


def test_as_many_nodes_are_drained_as_may_be() -> None:
    assert drains(TWENTY, ["worker-3", "worker-7"]) == ["worker-3", "worker-7"]
    assert drains(TWENTY[:4], ["worker-3"]) == ["worker-3"]
    assert len(drains(TWENTY, [one.name for one in TWENTY], max_drained="100%")) == 20


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL"])
def test_a_node_that_has_booted_since_it_failed_is_not_drained_on_its_next_machine(state: str) -> None:
    """The run may have waited for other nodes meanwhile. But a node that fails may boot by that."""
    minute = timedelta(minutes=1)
    nodes = [node(3, booted_at=BEGAN + minute), node(4, booted_at=BEGAN - minute)]
    found = drains(nodes, ["worker-3", "worker-4"], max_drained=2, state=state)
    assert found == ["worker-3", "worker-4"][state == "FAILED" :]


def test_a_node_that_boots_for_a_job_is_not_told_as_drained(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert drains([*TWENTY[:18], node(18, "MIXED+POWERING_UP")], ["worker-18"]) == []
    assert caplog.messages == ["Not drained, as they have booted since they failed, or boot now: worker-18"]


def test_a_node_that_keeps_its_reason_is_not_told_as_drained_for_another(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [*TWENTY[:18], node(18, "IDLE+DRAIN", "[node_problem] xid"), node(19, "IDLE+DRAIN", "[user_problem] disk")]
    with caplog.at_level(logging.INFO):
        assert drains(nodes, ["worker-3", "worker-18", "worker-19"], "100%") == ["worker-3", "worker-19"]
    drained, kept = caplog.messages
    assert drained == "Drained: worker-3, worker-19 (airflow:night: gpu-checks failed)"
    assert kept.startswith("worker-18 stays drained: [node_problem] xid (a health check has failed")


def test_a_check_that_fails_everywhere_drains_nobody() -> None:
    said = (
        r"gpu-checks has failed on worker-\[0-19\]: that is more than max_drained=10% of the 20 nodes that are on, "
        "so none was drained"
    )
    with pytest.raises(WorkFailed, match=said):
        drains(TWENTY, [one.name for one in TWENTY])


@pytest.mark.parametrize("reason", ["[hardware_problem] gpu", "airflow:night: gpu-checks failed"])
def test_what_is_drained_for_a_fault_already_counts(reason: str) -> None:
    before = [*TWENTY[:18], node(18, "IDLE+DRAIN", reason), node(19, "IDLE+DRAIN", reason)]
    with pytest.raises(WorkFailed, match=r"worker-3, and worker-\[18-19\] drained for faults already"):
        drains(before, ["worker-3"])
    # Its own drain is no new one.
    assert drains(before, ["worker-18"]) == []
    # Soperator has drained them all, as the check asks it to.
    with pytest.raises(WorkFailed, match=r"failed on worker-\[0-19\], and worker-\[0-19\] drained for faults already"):
        drains([node(number, "IDLE+DRAIN", reason) for number in range(20)], [one.name for one in TWENTY])


def test_the_run_of_a_check_that_fails_everywhere_is_over_and_not_deleted(
    checks: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckRun, "_drain", AsyncMock(side_effect=WorkFailed("that is more than max_drained=10%")))

    @asynccontextmanager
    async def clients(*_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(checks=checks, slurm=object(), outcome=CheckClients(made_up).outcome)

    async def start(check: CheckSeen, name: str, owner: str) -> RunSeen:
        checks.add(name)
        checks.ends(name, RunState.FAILED)
        return checks.seen[name]

    made_up: Any = checks
    monkeypatch.setattr(CheckRun, "open", clients)
    monkeypatch.setattr(checks, "start", start)
    span = {"deadline": datetime.now(timezone.utc) + timedelta(hours=1), "poll_interval": 0.0}
    work = run_of(drain_reason="airflow:night: gpu-checks failed", **span)
    event = asyncio.run(WorkTrigger(work.write()).event())
    assert (event["message"], list(checks.seen)) == ("that is more than max_drained=10%", [SECOND])


def test_a_node_that_a_person_has_drained_or_that_is_off_does_not_count() -> None:
    others = [node(18, "IDLE+DRAIN", "disk swap"), node(19, "IDLE+DRAIN", "airflow:shifts: lent")]
    assert drains([*TWENTY[:18], *others], ["worker-3", "worker-4"]) == ["worker-3", "worker-4"]
    off = [node(number, "IDLE+POWERED_DOWN") for number in range(20, 40)]
    with pytest.raises(WorkFailed, match="of the 20 nodes that are on"):
        drains([*TWENTY, *off], ["worker-1", "worker-2", "worker-3"])


def test_a_try_that_is_carried_out_again_keeps_its_own_run(checks: MadeUp) -> None:
    checks.add(SECOND)
    checks.ends(SECOND, RunState.FAILED)
    assert step(run_of(), checks)["state"] == "Failed"
    assert checks.started == []


def test_runs_from_before_a_clear_are_those_of_others(checks: MadeUp) -> None:
    checks.add(FIRST)
    run = run_of(KEYS[1:])
    assert step(run, checks) is None
    assert (checks.started, run.place) == ([], f"{FIRST}: the check is under way, and two runs disturb each other")
    checks.ends(FIRST, RunState.CANCELLED)
    step(run, checks)
    assert checks.started == [SECOND]


def test_a_run_that_another_has_cancelled_says_so(checks: MadeUp) -> None:
    run = run_of()
    step(run, checks)
    checks.add("by-hand", minutes=20)
    checks.ends(SECOND, RunState.CANCELLED)
    assert step(run, checks)["words"] == (
        "Cancelled: by-hand began after it, and a check cancels what its earlier runs have in Slurm"
    )


def test_jobs_of_users_with_the_name_of_a_check_are_not_cancelled_with_it(checks: MadeUp) -> None:
    places = enumerate(("hidden", "main", "hidden"), 6)
    jobs = [Job(id=JobId(number), partition=place, state=JobState.parse("RUNNING")) for number, place in places]
    slurm: Any = SimpleNamespace(ask=AsyncMock(return_value=jobs), cancel_many=AsyncMock())
    checks.add(SECOND)
    made_up: Any = checks
    assert asyncio.run(run_of().undo(CheckClients(made_up, slurm))).endswith(", and its jobs in Slurm cancelled")
    slurm.cancel_many.assert_awaited_once_with({JobId(6), JobId(8)})


def test_of_two_that_begin_at_once_one_gives_way(checks: MadeUp) -> None:
    run = run_of()
    checks.rival = "rival"
    assert step(run, checks) is None
    assert ([*checks.seen], run.place.split(":")[0]) == (["rival"], "rival has begun at the same time")
    checks.rival = ""
    checks.ends("rival", RunState.COMPLETE)
    assert step(run, checks) is None
    assert (checks.started, [*checks.seen]) == ([SECOND, SECOND], ["rival", SECOND])


def test_a_job_that_is_deleted(checks: MadeUp) -> None:
    run = run_of()
    step(run, checks)
    # Its jobs in Slurm go on if they are known, as they are when Kubernetes deletes old Jobs.
    checks.seen[SECOND] = replace(checks.seen[SECOND], slurm_jobs=("7",))
    step(run, checks)
    del checks.seen[SECOND]
    assert step(run, checks) is None
    checks.check = replace(checks.check, last=LastRun(outcome=CheckResult(state=RunState.COMPLETE), slurm_job="7"))
    assert step(run, checks)["state"] == "Complete"
    other = run_of()
    step(other, checks)
    del checks.seen[SECOND]
    with pytest.raises(WorkFailed, match="was deleted before it ended"):
        step(other, checks)


class Forgetful:
    """A Slurm without accounting, some minutes later."""

    async def statuses(self, ids: Iterable[JobId]) -> dict[JobId, JobStatus]:
        return {job: JobStatus(id=job, lost="it is in neither the queue nor accounting") for job in ids}


@pytest.mark.parametrize(
    ("state", "is_noted", "is_told"),
    [
        (RunState.COMPLETE, True, RunState.COMPLETE),
        (RunState.FAILED, True, RunState.FAILED),
        (RunState.COMPLETE, False, RunState.ERROR),
    ],
)
def test_what_slurm_has_forgotten_soperator_may_have_noted(
    checks: MadeUp, state: RunState, is_noted: bool, is_told: RunState
) -> None:
    checks.add(SECOND)
    checks.ends(SECOND, state, noted=is_noted)
    made_up: Any = checks
    slurm: Any = Forgetful()
    outcome = asyncio.run(CheckClients(made_up, slurm).outcome(checks.check, checks.seen[SECOND]))
    assert outcome.state is is_told


def test_work_survives_being_written_down() -> None:
    work = work_of(if_running="join", drain_reason="airflow:a")
    assert Work.read(json.loads(json.dumps(work.write()))) == work


def failures(failed: ActiveCheckFailedTrigger, checks: MadeUp) -> list[str]:
    made_up: Any = checks
    return [report["job"] for report in asyncio.run(failed.look(CheckClients(made_up)))]


def test_failures_are_told_once(checks: MadeUp) -> None:
    failed = ActiveCheckFailedTrigger(look_back=timedelta(hours=2))
    checks.add("good")
    checks.ends("good", RunState.COMPLETE)
    assert failures(failed, checks) == []
    checks.add("bad")
    assert failures(failed, checks) == []
    checks.ends("bad", RunState.FAILED)
    del checks.seen["good"]
    assert failures(failed, checks) == ["bad"]
    assert failures(failed, checks) == []
    # Of what Kubernetes has deleted nothing need be remembered.
    assert failed.memory() == ["bad"]


def test_what_failed_while_nobody_watched_is_told(checks: MadeUp) -> None:
    checks.add("bad")
    checks.ends("bad", RunState.ERROR)
    assert failures(ActiveCheckFailedTrigger("gpu-checks", look_back=-1), checks) == []
    told = ActiveCheckFailedTrigger("gpu-checks", look_back=-1)
    told.remember(["bad"])
    assert failures(told, checks) == []
    missed = ActiveCheckFailedTrigger("gpu-checks", look_back=-1)
    missed.remember([])
    assert failures(missed, checks) == ["bad"]


# The watch

CHECK = active_check("ssh", kind="k8sJob", lastJobName="gone", lastJobStatus="Failed", lastJobScheduleTime=ago(hours=9))
OLD = job("old", check="ssh", end="Complete", began=ago(hours=3))
FAILED = job("failed", check="ssh", end="Failed", began=ago(hours=2))
RUNNING = job("running", check="ssh", began=ago(hours=1))
OTHER = job("other", check="gpu", end="Complete", began=ago(minutes=1))


def look(*runs: RunSeen, **awaited: Any) -> Look:
    checks: Any = MadeUp()
    checks.check, checks.seen = CHECK, {run.name: run for run in (*runs, OTHER)}
    watch = CheckWatch(where=WHERE, check="ssh", **awaited)
    return asyncio.run(watch.look(CheckClients(checks), 0))


@pytest.mark.parametrize(
    ("runs", "awaited", "reached"),
    [
        ([OLD], "complete", True),
        ([OLD], "failed", False),
        ([OLD], "ended", True),
        ([FAILED, OLD], "complete", False),
        ([FAILED, OLD], "failed", True),
        ([OLD, FAILED], "ended", True),
        ([OLD, FAILED, RUNNING], "ended", False),
    ],
)
def test_the_newest_run_counts(runs: list[Any], awaited: str, reached: bool) -> None:
    assert look(*runs, state=awaited).is_reached is reached


@pytest.mark.parametrize(
    ("noted", "in_slurm", "told"),
    [
        (LastRun(outcome=CheckResult(state=RunState.COMPLETE), slurm_job="7"), "FAILED", "Failed"),
        (LastRun(outcome=CheckResult(state=RunState.COMPLETE), slurm_job="6"), "COMPLETED", "Complete"),
    ],
    ids=["overwritten", "of an older run"],
)
def test_what_soperator_noted_at_a_second_look_is_no_end_of_a_run(
    checks: MadeUp, noted: LastRun, in_slurm: str, told: str
) -> None:
    class Slurm:
        async def statuses(self, ids: Iterable[JobId]) -> dict[JobId, JobStatus]:
            return {one: JobStatus(id=one, parts=(Job(id=one, state=JobState.parse(in_slurm)),)) for one in ids}

    checks.add(FIRST, slurm_jobs=("7",), end="Complete", finished=NOW - timedelta(hours=1))
    checks.check = replace(checks.check, last=noted)
    made_up: Any = checks
    slurm: Any = Slurm()
    watch = CheckWatch(where=WHERE, check="gpu-checks", state="ended")
    found = asyncio.run(watch.look(CheckClients(made_up, slurm), 0))
    assert (found.is_reached, found.result["state"], found.result["job"]) == (True, told, FIRST)


def test_a_look_may_ask_for_runs_anew(checks: MadeUp) -> None:
    made_up: Any = checks
    asyncio.run(CheckWatch(where=WHERE, check="gpu-checks").look(CheckClients(made_up), 2.0))
    assert checks.objects.max_age == 2.0


def test_runs_before_a_time_do_not_count() -> None:
    since = NOW - timedelta(hours=2, minutes=30)
    found = look(OLD, since=since)
    assert not found.is_reached
    assert found.says == ("ssh has not run since 2026-11-21 23:30:00 UTC",)
    assert look(OLD, since=since - timedelta(hours=1)).result["job"] == "old"


def test_a_run_whose_job_is_gone_is_known_by_the_status() -> None:
    assert (look(state="failed").is_reached, look(state="failed").result["job"]) == (True, "gone")
    assert not look(state="failed", since=NOW - timedelta(hours=8)).is_reached


def test_who_asks_to_be_told_at_once_is() -> None:
    with pytest.raises(WorkFailed, match="failed: Failed: R"):
        look(FAILED, fail_fast=True)
    assert not look(RUNNING, FAILED, fail_fast=True).is_reached
    assert look(FAILED, fail_fast=True, state="failed").is_reached


class Printed:
    """A Slurm whose login node has some files."""

    def __init__(self, **files: bytes) -> None:
        self.files = {f"/opt/soperator-outputs/slurm_jobs/{name}.out": data for name, data in files.items()}

    async def ask(self, request: ReadPieces) -> list[FilePiece]:
        found = [self.files.get(piece.path) for piece in request.pieces]
        return [FilePiece(data or b"", None if data is None else len(data)) for data in found]


def figures_of(slurm: Any, *jobs: JobEnd) -> dict[str, dict[str, float]]:
    checks: Any = MadeUp()
    clients = CheckClients(checks, slurm)
    return asyncio.run(clients.figures("gpu-checks", CheckResult(jobs=jobs), PATTERNS))


def test_figures_are_of_each_node_of_a_job_wherever_it_has_written() -> None:
    # The queue has forgotten where the first has written, which is where Soperator has all of them write.
    jobs = [
        JobEnd(job_id="7", nodes=("worker-0",)),
        JobEnd(job_id="8", nodes=("worker-1", "worker-2"), output="/opt/soperator-outputs/slurm_jobs/8.out"),
        JobEnd(job_id="9", nodes=("worker-3",)),
        JobEnd(job_id="10"),
    ]
    slurm = Printed(
        **{
            "worker-0.gpu-checks.7": b"# Avg bus bandwidth    : 481.2\n",
            "8": b"# Avg bus bandwidth    : 90.5\n",
            "worker-3.gpu-checks.9": b"Unsupported platform\n",
        }
    )
    both = {"busbw": 90.5}
    assert figures_of(slurm, *jobs) == {"worker-0": {"busbw": 481.2}, "worker-1": both, "worker-2": both}
    assert figures_of(None, *jobs) == {}


def test_a_check_does_not_depend_on_its_figures(checks: MadeUp, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(figures=PATTERNS)
    with pytest.raises(
        FileError, match=r"none of the jobs' files is there, such as /opt/.*worker-0\.gpu-checks\.7\.out"
    ):
        figures_of(Printed(), JobEnd(job_id="7", nodes=("worker-0",)))
    fake: Any = checks
    outcome, figures = CheckClients(fake).outcome, AsyncMock(side_effect=FileError("gone"))
    made_up: Any = SimpleNamespace(checks=checks, slurm=None, outcome=outcome, figures=figures)
    assert asyncio.run(run.step(made_up)) is None
    checks.ends(SECOND, RunState.COMPLETE)
    with caplog.at_level(logging.INFO):
        result = asyncio.run(run.step(made_up))
    assert result is not None
    assert (result["state"], result["figures"]) == ("Complete", {})
    assert "There are no figures: gone" in caplog.text
