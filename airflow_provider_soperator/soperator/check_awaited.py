"""Waiting for the newest run of an active check to have ended in a way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from airflow_provider_soperator.soperator.check_ends import Outcome, RunState
from airflow_provider_soperator.soperator.checks import CheckSeen, RunSeen, judged, newest

#: ``ended``: in whatever way.
Awaited = Literal["complete", "failed", "ended"]


class CheckHasFailed(Exception):
    """The newest run has not ended as it is awaited."""


@dataclass(frozen=True, kw_only=True)
class CheckAwaited:
    """What is awaited of which check."""

    check: str
    state: str = "complete"
    #: Runs that began before do not count.
    since: datetime | None = None
    #: Whether a run that ends otherwise ends the waiting; another may follow it.
    fail_fast: bool = False

    def __post_init__(self) -> None:
        if self.state not in get_args(Awaited):
            raise ValueError(f"state={self.state!r} is none of {', '.join(map(repr, get_args(Awaited)))}")

    def look(self, check: CheckSeen, runs: Sequence[RunSeen], now: datetime) -> dict[str, Any]:
        """What the newest run has come to, in ``words`` too, and whether that ``is_reached``."""
        job, outcome = self._newest(check, runs, now)
        if outcome is None:
            since = f" since {self.since:%Y-%m-%d %H:%M:%S %Z}" if self.since else ""
            return {"is_reached": False, "words": f"{check.name} has not run{since}"}
        words = f"{job or check.name}: {outcome}"
        reached = self._is_reached(outcome.state)
        if self.fail_fast and outcome.state.is_over and not reached:
            raise CheckHasFailed(words)
        return {"is_reached": reached, "check": check.name, "job": job, **outcome.describe(), "words": words}

    def _newest(self, check: CheckSeen, runs: Sequence[RunSeen], now: datetime) -> tuple[str, Outcome | None]:
        run = newest([run for run in runs if run.check == check.name], self.since)
        if run:
            return run.name, judged(check, run, now)
        last = check.last
        # Kubernetes has deleted its Job.
        if last.submitted and (self.since is None or last.submitted >= self.since):
            return last.job, last.outcome
        return "", None

    def _is_reached(self, state: RunState) -> bool:
        if self.state == "complete":
            return state is RunState.COMPLETE
        return state.is_bad if self.state == "failed" else state.is_over
