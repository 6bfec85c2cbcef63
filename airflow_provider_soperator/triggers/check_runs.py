"""One run of an active check on demand: begun once, or found again, and followed until it is known how it has ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.sides import Where
from airflow_provider_soperator.kubernetes.checks import ActiveChecks
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.node_orders import drained
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes
from airflow_provider_soperator.soperator.check_ends import Outcome, RunState, of_slurm
from airflow_provider_soperator.soperator.checks import FOLLOWS, CheckSeen, RunSeen, job_name, judged, newest, under_way


class RunLost(Exception):
    """There will be no end of the run to be known, and why; another try may have more luck."""


@dataclass(frozen=True)
class Ways:
    """To a cluster's checks, and, if there is one, to its Slurm."""

    checks: ActiveChecks
    slurm: AsyncSlurmClient | None = None

    async def outcome(self, check: CheckSeen, run: RunSeen) -> Outcome:
        """What a run is: as Slurm has it where that can be asked, and otherwise as Soperator has noted it."""
        outcome = judged(check, run, datetime.now(timezone.utc))
        if self.slurm is None or not run.end or not run.slurm_jobs:
            return outcome
        statuses = (await self.slurm.statuses(map(JobId.parse, run.slurm_jobs))).values()
        # Without accounting Slurm forgets jobs soon, and Soperator has noted how they have ended.
        is_forgotten = any(status.lost for status in statuses) and outcome.state.is_over
        return outcome if is_forgotten else of_slurm(statuses)


@asynccontextmanager
async def ways(kubernetes_conn_id: str, namespace: str, slurm_conn_id: str) -> AsyncIterator[Ways]:
    """Both ways, opened; ``slurm_conn_id`` may be empty."""
    async with Where(kubernetes_conn_id, namespace, slurm_conn_id=slurm_conn_id).open() as sides:
        yield Ways(ActiveChecks(sides.kubernetes.objects), sides.slurm)


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """Which check is to be run, and what if it runs already. Its fields are what JSON can carry."""

    check: str
    #: Keys of the tries of the task since it was last cleared, the last of which is this one.
    keys: tuple[str, ...]
    #: Whose run it is, for those who look at its Job.
    task: str
    #: ``wait`` until the other run is over, ``join`` it, or ``fail``.
    when_running: str = "wait"
    #: Why the nodes that fail are drained; not if it is empty.
    drain_reason: str = ""

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> RunOrder:
        """From its fields, as JSON gives them back."""
        return cls(**{**written, "keys": tuple(written["keys"])})

    def write(self) -> dict[str, Any]:
        return asdict(self)


class CheckRun:
    """An order on its way. Another process that is given the same order goes on with the run that it finds."""

    def __init__(self, order: RunOrder, log: Logger) -> None:
        self._order, self._log = order, log
        self._run: RunSeen | None = None
        self._is_ours = True
        #: When Slurm had it as over, by this process's clock.
        self._over_since: float | None = None
        #: What is waited for.
        self.place = "it has not begun"
        #: What has become of it once it was to end.
        self.fate = ""

    async def step(self, ways: Ways) -> dict[str, Any] | None:
        """Look, and begin the run if it can begin now; what it has come to, once that is known."""
        check = await ways.checks.find(self._order.check)
        runs = [run for run in await ways.checks.runs() if run.check == check.name]
        self._run = run = self._again(runs) if self._run else await self._begun(ways, check, runs)
        if run is None:
            return None
        outcome = await self._outcome(ways, check, run)
        if not outcome.state.is_over:
            return None
        last = newest(runs)
        if outcome.state is RunState.CANCELLED and last and last.uid != run.uid:
            why = f"{last.name} began after it, and a check cancels what its earlier runs have in Slurm"
            outcome = replace(outcome, why=why)
        self._log.info("%s: %s", run.name, outcome)
        drained = await self._drain(ways.slurm, outcome) if ways.slurm and self._order.drain_reason else []
        return {"check": check.name, "job": run.name, **outcome.describe(), "drained": drained, "words": str(outcome)}

    async def cancel(self, ways: Ways) -> None:
        """End the run, unless somebody else has begun it."""
        if self._run and not self._is_ours:
            self.fate = f"; {self._run.name}, which others have begun, goes on"
            return
        check = await ways.checks.find(self._order.check)
        name = self._run.name if self._run else job_name(check.name, self._order.keys[-1])
        runs = {run.name: run for run in await ways.checks.runs()}
        run = runs.get(name, self._run)
        if run is None:
            self.fate = "; the check had not begun"
            return
        await ways.checks.end(name)
        if ways.slurm is None:
            left = f", and its jobs in Slurm ({_listed(run.slurm_jobs)}) go on: slurm_conn_id has them cancelled"
            self.fate = f"; {name} was deleted{left if check.is_of_slurm else ''}"
            return
        # Its Pod may have been about to note what it has submitted. Soperator ends a run's jobs by this name as well.
        queued = await ways.slurm.ask(ListJobs(names=(check.name,)))
        jobs = {*map(JobId.parse, run.slurm_jobs), *(job.id for job in queued if not job.state.is_finished)}
        await ways.slurm.cancel_many(jobs)
        self.fate = f"; {name} was deleted{', and its jobs in Slurm cancelled' if jobs else ''}"

    def _again(self, runs: Sequence[RunSeen]) -> RunSeen:
        """The run as it is now."""
        before = self._run
        assert before is not None
        now = next((run for run in runs if run.uid == before.uid), None)
        if now is None and not before.end and not before.slurm_jobs:
            raise RunLost(f"somebody has deleted {before.name} before it has ended")
        # Kubernetes deletes old Jobs of a check. What it has submitted is known, and goes on.
        finished = before.finished or datetime.now(timezone.utc)
        return now or replace(before, end=before.end or "Complete", finished=finished)

    async def _begun(self, ways: Ways, check: CheckSeen, runs: Sequence[RunSeen]) -> RunSeen | None:
        names = [job_name(check.name, key) for key in self._order.keys]
        found = {run.name: run for run in runs}
        mine = next((found[name] for name in reversed(names) if name in found), None)
        if mine and (mine.name == names[-1] or await _is_good(ways, check, mine)):
            self._log.info("%s has been begun before: this goes on with it", mine.name)
            return mine
        others = [
            run
            for run in under_way(check, runs, datetime.now(timezone.utc))
            if not (await ways.outcome(check, run)).state.is_over
        ]
        if not others:
            return await self._start(ways, check, names[-1])
        if self._order.when_running == "join":
            self._is_ours = False
            self._log.info("%s is under way: this waits for its end, and starts no other", others[-1].name)
            return others[-1]
        words = f"{', '.join(run.name for run in others)}: the check is under way, and two runs disturb each other"
        if self._order.when_running == "fail":
            raise RunLost(words)
        self._tell(words)
        return None

    async def _start(self, ways: Ways, check: CheckSeen, name: str) -> RunSeen | None:
        """Begin the run; None if somebody else has begun one since the last look."""
        run = await ways.checks.start(check, name, self._order.task)
        rivals = [
            one for one in await ways.checks.runs() if one.check == check.name and not one.end and one.uid != run.uid
        ]
        # One of two always sees the other. If they began in the same second both may, and both give way.
        if any(one.created and run.created and one.created <= run.created for one in rivals):
            await ways.checks.end(run.name)
            self._tell(f"{rivals[0].name} has begun at the same time: this gives way, and looks again")
            await asyncio.sleep(random.random())
            return None
        self._log.info("%s: the check has been started as %s", check.name, run.name)
        return run

    async def _outcome(self, ways: Ways, check: CheckSeen, run: RunSeen) -> Outcome:
        outcome = await ways.outcome(check, run)
        jobs = f"its jobs in Slurm ({_listed(run.slurm_jobs)})"
        if not outcome.state.is_over:
            self._over_since = None
            ended = f": {len(outcome.jobs)} have ended" if outcome.jobs else ""
            self._tell(f"{run.name}: {f'waits for {jobs}{ended}' if run.end else 'its Job has not ended'}")
        elif not judged(check, run, datetime.now(timezone.utc)).state.is_over:
            # Soperator does what it does about failures before it notes them, and then no more.
            self._over_since = self._over_since or time.monotonic()
            if time.monotonic() - self._over_since < FOLLOWS.total_seconds():
                self._tell(f"{run.name}: {jobs} have ended, which Soperator has not noted yet")
                return Outcome()
            self._log.warning("Soperator has not noted the end of %s: see whether soperatorchecks runs", run.name)
        return outcome

    async def _drain(self, slurm: AsyncSlurmClient, outcome: Outcome) -> list[str]:
        """Drain the nodes that have failed; one that is drained already keeps its reason."""
        failing = [node for node in await slurm.ask(ListNodes()) if node.name in outcome.failing]
        for order in drained(failing, self._order.drain_reason).orders:
            await slurm.ask(order)
        names = [node.name for node in failing]
        if names:
            self._log.info("Drained: %s (%s)", ", ".join(names), self._order.drain_reason)
        return names

    def _tell(self, place: str) -> None:
        if place != self.place:
            self.place = place
            self._log.info("%s", place)


async def _is_good(ways: Ways, check: CheckSeen, run: RunSeen) -> bool:
    """Whether a run of an earlier try need not be repeated."""
    return (await ways.outcome(check, run)).state in (RunState.IN_PROGRESS, RunState.COMPLETE, RunState.SKIPPED)


def _listed(jobs: Sequence[str]) -> str:
    """Ids of jobs, of many of them the first and the last."""
    return ",".join(jobs) if len(jobs) <= 8 else f"{jobs[0]} to {jobs[-1]}, {len(jobs)} in all"
