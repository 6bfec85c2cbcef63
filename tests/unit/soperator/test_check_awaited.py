"""The newest run of a check, and whether it is what is waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.soperator.check_awaited import CheckAwaited, CheckHasFailed
from tests.unit.soperator.active_checks import NOW, active_check, ago, job

CHECK = active_check("ssh", kind="k8sJob", lastJobName="gone", lastJobStatus="Failed", lastJobScheduleTime=ago(hours=9))
OLD = job("old", check="ssh", end="Complete", began=ago(hours=3))
FAILED = job("failed", check="ssh", end="Failed", began=ago(hours=2))
RUNNING = job("running", check="ssh", began=ago(hours=1))
OTHER = job("other", check="gpu", end="Complete", began=ago(minutes=1))


def look(*runs: Any, **awaited: Any) -> dict[str, Any]:
    return CheckAwaited(check="ssh", **awaited).look(CHECK, [*runs, OTHER], NOW)


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
    assert look(*runs, state=awaited)["is_reached"] is reached


def test_runs_before_a_time_do_not_count() -> None:
    since = NOW - timedelta(hours=2, minutes=30)
    found = look(OLD, since=since)
    assert not found["is_reached"]
    assert found["words"] == "ssh has not run since 2026-11-21 23:30:00 UTC"
    assert look(OLD, since=since - timedelta(hours=1))["job"] == "old"


def test_a_run_whose_job_is_gone_is_known_by_the_status() -> None:
    assert (look(state="failed")["is_reached"], look(state="failed")["job"]) == (True, "gone")
    assert not look(state="failed", since=NOW - timedelta(hours=8))["is_reached"]


def test_who_asks_to_be_told_at_once_is() -> None:
    with pytest.raises(CheckHasFailed, match="failed: Failed: R"):
        look(FAILED, fail_fast=True)
    assert not look(RUNNING, FAILED, fail_fast=True)["is_reached"]
    assert look(FAILED, fail_fast=True, state="failed")["is_reached"]


def test_what_cannot_be_awaited() -> None:
    with pytest.raises(ValueError, match="state='done' is none of 'complete', 'failed', 'ended'"):
        CheckAwaited(check="ssh", state="done")
