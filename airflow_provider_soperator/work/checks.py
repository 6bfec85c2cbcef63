"""Active checks: a run on demand, begun once or found again, and the watch of the newest run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.figures import figures_in
from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.files import FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.node_conditions import in_lines, is_faulty
from airflow_provider_soperator.slurm.node_orders import because, drained
from airflow_provider_soperator.slurm.requests import Drain, ListJobs, ListNodes
from airflow_provider_soperator.slurm.states import NodeFlag
from airflow_provider_soperator.soperator.active_checks import (
    FOLLOWS,
    PARTITION,
    ActiveChecks,
    CheckSeen,
    RunSeen,
    job_name,
    judged,
    newest,
    newest_result,
    under_way,
)
from airflow_provider_soperator.soperator.check_results import CheckResult, RunState, of_slurm
from airflow_provider_soperator.transports.transport_errors import NotSupported
from airflow_provider_soperator.values import number_or_share
from airflow_provider_soperator.work.nodes import give_orders
from airflow_provider_soperator.work.protocols import Look, Watch, Work, WorkFailed

#: States of a run with which the run of an earlier try need not be repeated.
_GOOD = (RunState.IN_PROGRESS, RunState.COMPLETE, RunState.SKIPPED)
#: Where Soperator has a job of a check write, for a node, a check and a job; and how much of it is read.
_OUTPUT = "/opt/soperator-outputs/slurm_jobs/{}.{}.{}.out"
_MOST_PRINTED = 1 << 18


@dataclass(frozen=True)
class CheckClients:
    """A cluster's checks, and, with a connection to it, its Slurm."""

    checks: ActiveChecks
    slurm: AsyncSlurmClient | None = None

    async def outcome(self, check: CheckSeen, run: RunSeen) -> CheckResult:
        """The outcome of a run: from Slurm if that can be asked, otherwise as Soperator has recorded it."""
        outcome = judged(check, run, datetime.now(timezone.utc))
        if self.slurm is None or not run.end or not run.slurm_jobs:
            return outcome
        statuses = (await self.slurm.statuses(map(JobId.parse, run.slurm_jobs))).values()
        # Without accounting Slurm soon forgets jobs, but Soperator has recorded their ends.
        is_forgotten = any(status.lost for status in statuses) and outcome.state.is_over
        return outcome if is_forgotten else of_slurm(statuses)

    async def figures(
        self, check: str, outcome: CheckResult, patterns: Mapping[str, str]
    ) -> dict[str, dict[str, float]]:
        """The figures that the jobs of a run have printed, by node; a job of several nodes measures them together."""
        jobs = {job.output or _OUTPUT.format(job.nodes[0], check, job.job_id): job for job in outcome.jobs if job.nodes}
        if self.slurm is None or not jobs or not patterns:
            return {}
        answers = await self.slurm.ask(ReadPieces(tuple(Piece(path, length=_MOST_PRINTED) for path in jobs)))
        found = {
            node: figures_in(answer.data.decode(errors="replace"), patterns)
            for answer, job in zip(answers, jobs.values(), strict=True)
            for node in job.nodes
        }
        if all(answer.size is None for answer in answers):
            raise FileError(f"none of the jobs' files is there, such as {next(iter(jobs))}")
        return {node: figures for node, figures in found.items() if figures}


@asynccontextmanager
async def check_clients(where: ClusterConnections, max_age: float | None = None) -> AsyncIterator[CheckClients]:
    async with where.open(max_age) as sides:
        yield CheckClients(ActiveChecks(sides.kubernetes.objects), sides.slurm)


@dataclass(kw_only=True)
class CheckRun(Work[CheckClients]):
    """A run of a check that is begun, or found, and followed until its end is known."""

    where: ClusterConnections
    check: str
    #: Keys of the tries of the task since it was last cleared, the last of which is this one.
    keys: tuple[str, ...]
    #: The task, shown to readers of the Job.
    task: str
    #: ``wait`` until the other run is over, ``join`` it, or ``fail``.
    if_running: Literal["wait", "join", "fail"] = "wait"
    #: The reason for drains of nodes that fail; without it they are not drained.
    drain_reason: str = ""
    #: The most nodes that may be out of service for a fault: a number, or a share of those that are on.
    max_drained: int | str = "10%"
    #: Expressions for the figures in what its jobs print.
    figures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._run: RunSeen | None = None
        self._is_ours = True
        #: Time at which Slurm reported its end, by this process's clock.
        self._over_since: float | None = None
        self.place = "it has not begun"

    def open(self) -> AbstractAsyncContextManager[CheckClients]:
        return check_clients(self.where)

    async def step(self, clients: CheckClients) -> dict[str, Any] | None:
        check = await clients.checks.find(self.check)
        runs = [run for run in await clients.checks.runs() if run.check == check.name]
        self._run = run = self._again(self._run, runs) if self._run else await self._begun(clients, check, runs)
        if run is None:
            return None
        outcome = await self._outcome(clients, check, run)
        if not outcome.state.is_over:
            return None
        last = newest(runs)
        if outcome.state is RunState.CANCELLED and last and last.uid != run.uid:
            why = f"{last.name} began after it, and a check cancels what its earlier runs have in Slurm"
            outcome = replace(outcome, why=why)
        self._log.info("%s: %s", run.name, outcome)
        # Nothing of it is left to end.
        self.has_begun = False
        drained = await self._drain(clients.slurm, outcome) if clients.slurm and self.drain_reason else []
        figures: dict[str, dict[str, float]] = {}
        try:
            figures = await clients.figures(check.name, outcome, self.figures)
        except (FileError, NotSupported) as error:
            # The result of the check does not depend on them. From 5.0 on the files are on the nodes' own disks.
            self._log.info("There are no figures: %s", error)
        return {
            "check": check.name,
            "job": run.name,
            "begun": run.created.isoformat() if run.created else None,
            **outcome.describe(),
            "drained": drained,
            "figures": figures,
            "words": str(outcome),
            "seconds": self.seconds,
        }

    async def undo(self, clients: CheckClients) -> str:
        """End the run, unless it is another's: one that waits for busy nodes would disturb them hours later."""
        if self._run and not self._is_ours:
            return f"Run {self._run.name}, which others have begun, goes on"
        check = await clients.checks.find(self.check)
        name = self._run.name if self._run else job_name(check.name, self.keys[-1])
        runs = {run.name: run for run in await clients.checks.runs()}
        run = runs.get(name, self._run)
        if run is None:
            return "The check had not begun"
        await clients.checks.end(name)
        if clients.slurm is None:
            left = f", and its jobs in Slurm ({_listed(run.slurm_jobs)}) go on: slurm_conn_id has them cancelled"
            return f"Run {name} was deleted{left if check.is_of_slurm else ''}"
        # Its Pod may not have recorded yet what it submitted. Soperator, too, ends a run's jobs by name and partition.
        named = await clients.slurm.ask(ListJobs(names=(check.name,)))
        queued = (job.id for job in named if job.partition == PARTITION and not job.state.is_finished)
        jobs = {*map(JobId.parse, run.slurm_jobs), *queued}
        await clients.slurm.cancel_many(jobs)
        return f"Run {name} was deleted{', and its jobs in Slurm cancelled' if jobs else ''}"

    def left(self, error: Exception) -> str:
        return f"What has been started goes on, as it could not be ended: {error}"

    def _again(self, before: RunSeen, runs: Sequence[RunSeen]) -> RunSeen:
        now = next((run for run in runs if run.uid == before.uid), None)
        if now is None and not before.end and not before.slurm_jobs:
            raise WorkFailed(f"{before.name} was deleted before it ended")
        # Kubernetes deletes old Jobs of a check. The submitted jobs are known, and go on.
        finished = before.finished or datetime.now(timezone.utc)
        return now or replace(before, end=before.end or "Complete", finished=finished)

    async def _begun(self, clients: CheckClients, check: CheckSeen, runs: Sequence[RunSeen]) -> RunSeen | None:
        names = [job_name(check.name, key) for key in self.keys]
        found = {run.name: run for run in runs}
        mine = next((found[name] for name in reversed(names) if name in found), None)
        if mine and (mine.name == names[-1] or (await clients.outcome(check, mine)).state in _GOOD):
            self._log.info("%s has been begun before: this goes on with it", mine.name)
            return mine
        others = [
            run
            for run in under_way(check, runs, datetime.now(timezone.utc))
            if not (await clients.outcome(check, run)).state.is_over
        ]
        if not others:
            return await self._start(clients, check, names[-1])
        if self.if_running == "join":
            self._is_ours = False
            self._log.info("%s is under way: this waits for its end, and starts no other", others[-1].name)
            return others[-1]
        words = f"{', '.join(run.name for run in others)}: the check is under way, and two runs disturb each other"
        if self.if_running == "fail":
            raise WorkFailed(words)
        self._reach(words)
        return None

    async def _start(self, clients: CheckClients, check: CheckSeen, name: str) -> RunSeen | None:
        """Begin the run; None if another one has been begun since the last look."""
        self.has_begun = True
        run = await clients.checks.start(check, name, self.task)
        rivals = [
            one for one in await clients.checks.runs() if one.check == check.name and not one.end and one.uid != run.uid
        ]
        # One of two always sees the other. If they began in the same second both may, and both give way.
        if any(one.created and run.created and one.created <= run.created for one in rivals):
            await clients.checks.end(run.name)
            self._reach(f"{rivals[0].name} has begun at the same time: this gives way, and looks again")
            await asyncio.sleep(random.random())
            return None
        self._log.info("%s: the check has been started as %s", check.name, run.name)
        return run

    async def _outcome(self, clients: CheckClients, check: CheckSeen, run: RunSeen) -> CheckResult:
        outcome = await clients.outcome(check, run)
        jobs = f"its jobs in Slurm ({_listed(run.slurm_jobs)})"
        if not outcome.state.is_over:
            self._over_since = None
            ended = f": {len(outcome.jobs)} have ended" if outcome.jobs else ""
            self._reach(f"{run.name}: {f'waits for {jobs}{ended}' if run.end else 'its Job is still running'}")
        elif not judged(check, run, datetime.now(timezone.utc)).state.is_over:
            # Soperator reacts to failures before it records them, and not afterwards.
            self._over_since = self._over_since or time.monotonic()
            if time.monotonic() - self._over_since < FOLLOWS.total_seconds():
                self._reach(f"{run.name}: {jobs} have ended, which Soperator has not noted yet")
                return CheckResult()
            self._log.warning("Soperator has not noted the end of %s: see whether soperatorchecks runs", run.name)
        return outcome

    async def _drain(self, slurm: AsyncSlurmClient, outcome: CheckResult) -> list[str]:
        """Drain the nodes that have failed, as far as they are not drained already."""
        nodes = await slurm.ask(ListNodes())
        bad = {*outcome.failing_since({node.name: node.booted_at for node in nodes})}
        bad -= {node.name for node in nodes if node.boots_for_job}
        if past := {*outcome.failing} - bad:
            # The run may have waited for other nodes for hours.
            self._log.info("Not drained, as they have booted since they failed, or boot now: %s", hostlist.fold(past))
        failing = [node for node in nodes if node.name in bad]
        self._refuse_too_many(nodes, failing)
        orders = drained(failing, self.drain_reason).orders
        await give_orders(orders, slurm)
        new = [name for order in orders if isinstance(order, Drain) for name in order.names]
        if new:
            self._log.info("Drained: %s (%s)", ", ".join(new), self.drain_reason)
        for line in in_lines({node.name: because(node, "stays drained") for node in failing if node.name not in new}):
            self._log.info("%s", line)
        return [node.name for node in failing]

    def _refuse_too_many(self, nodes: Sequence[Node], failing: Sequence[Node]) -> None:
        """Raise if more nodes would be out of service for a fault than may be: that has mostly another cause."""
        on = [node for node in nodes if not node.is_off]
        out = [node for node in on if node.state.has(NodeFlag.DRAIN) and is_faulty(node, self.drain_reason)]
        more = [node for node in failing if not node.state.has(NodeFlag.DRAIN)]
        limit = number_or_share("max_drained", self.max_drained, len(on))
        if failing and len(out) + len(more) > limit:
            drained = f", and {hostlist.fold(node.name for node in out)} drained for faults already" if out else ""
            raise WorkFailed(
                f"{self.check} has failed on {hostlist.fold(node.name for node in failing)}{drained}: that is more "
                f"than max_drained={self.max_drained} of the {len(on)} nodes that are on, so none was drained. See "
                "whether something that all share is to blame, such as the jail or the check itself; else drain them, "
                "or raise max_drained"
            )


def _listed(jobs: Sequence[str]) -> str:
    """Ids of jobs; if there are many, the first and the last."""
    return ",".join(jobs) if len(jobs) <= 8 else f"{jobs[0]} to {jobs[-1]}, {len(jobs)} in all"


@dataclass(kw_only=True)
class CheckWatch(Watch[CheckClients]):
    """A watch of the newest run of a check until it ends as awaited."""

    where: ClusterConnections
    check: str
    state: Literal["complete", "failed", "ended"] = "complete"
    #: Older runs do not count.
    since: datetime | None = None
    #: Fail if a run ends in another state; otherwise wait for the next run.
    fail_fast: bool = False

    def open(self) -> AbstractAsyncContextManager[CheckClients]:
        return check_clients(self.where, self.poll_interval / 2)

    async def look(self, client: CheckClients, max_age: float) -> Look:
        client.checks.objects.max_age = max_age
        check = await client.checks.find(self.check)
        runs = [run for run in await client.checks.runs() if run.check == check.name]
        job, outcome = newest_result(check, runs, self.since, datetime.now(timezone.utc))
        if run := newest(runs, self.since):
            # Soperator looks at old runs again, and then overwrites what it has noted.
            outcome = await client.outcome(check, run)
        if outcome is None:
            since = f" since {self.since:%Y-%m-%d %H:%M:%S %Z}" if self.since else ""
            return Look(False, says=(f"{check.name} has not run{since}",))
        state, words = outcome.state, f"{job or check.name}: {outcome}"
        reached = {"complete": state is RunState.COMPLETE, "failed": state.is_bad, "ended": state.is_over}
        is_reached = reached[self.state]
        if self.fail_fast and state.is_over and not is_reached:
            raise WorkFailed(words)
        return Look(is_reached, {"check": check.name, "job": job, **outcome.describe(), "words": words}, (words,))
