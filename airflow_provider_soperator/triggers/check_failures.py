"""Which runs of active checks have failed, each told once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.soperator.active_checks import CheckSeen, RunSeen
from airflow_provider_soperator.triggers.check_runs import Ways

#: What ended before is not told, whatever is remembered: a DAG that was paused for a month is not to run for all of it.
_FURTHEST = timedelta(days=1)


class FailedRuns:
    """Looks at all runs that Kubernetes has in each round. Their Jobs stay for a while after their end."""

    def __init__(self, check: str, since: datetime) -> None:
        self._check = check
        #: What ended before this is dealt with.
        self._since = since
        #: Runs that are dealt with, of those that Kubernetes still has.
        self._over: set[str] = set()

    def memory(self) -> list[str]:
        """What another of these goes on with, as JSON."""
        return sorted(self._over)

    def remember(self, memory: Iterable[str]) -> None:
        """Go on where another has come to."""
        self._over = set(memory)
        self._since = datetime.now(timezone.utc) - _FURTHEST

    async def round(self, ways: Ways) -> list[dict[str, Any]]:
        """Those that have failed since the last round."""
        checks = await self._watched(ways)
        runs = [run for run in await ways.checks.runs() if run.check in checks]
        self._over &= {run.uid for run in runs}
        news = []
        for run in sorted(runs, key=lambda run: (str(run.finished), run.name)):
            if run.uid in self._over or not run.end:
                continue
            if report := await self._look(ways, checks[run.check], run):
                news.append(report)
        return news

    async def _watched(self, ways: Ways) -> dict[str, CheckSeen]:
        if self._check:
            check = await ways.checks.find(self._check)
            return {check.name: check}
        return {check.name: check for check in await ways.checks.list_all()}

    async def _look(self, ways: Ways, check: CheckSeen, run: RunSeen) -> dict[str, Any] | None:
        outcome = await ways.outcome(check, run)
        if not outcome.state.is_over:
            return None
        self._over.add(run.uid)
        # The Job of a run has ended before the run has: one that was under way then is told.
        if not outcome.state.is_bad or (run.finished and run.finished < self._since):
            return None
        return {"check": check.name, "job": run.name, **outcome.describe()}
