"""A backup of a task: made once, found again by a retry, or not made where one is young enough."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.work.backups import BackupSeen, JailBackup
from airflow_provider_soperator.work.protocols import Work, WorkFailed

NOW = datetime.now(timezone.utc)
LOG: Any = logging.getLogger(__name__)
FIRST, SECOND = "jail-airflow-q6befiawjvkz-3", "jail-airflow-r7cfgjbxkwla-3"


class Backups:
    """Backups whose ends the test decides on."""

    def __init__(self, **states: tuple[str, float]) -> None:
        self.seen: dict[str, BackupSeen] = {}
        self.started: list[str] = []
        for name, (state, hours) in states.items():
            self.add(name, state, hours)

    def add(self, name: str, state: str = "running", hours_ago: float = 0.0) -> BackupSeen:
        created: Any = {"created": NOW - timedelta(hours=hours_ago), "state": state, "why": "1 job"}
        self.seen[name] = BackupSeen(name=name, **created)
        return self.seen[name]

    def ends(self, name: str, state: Any) -> None:
        self.seen[name] = replace(self.seen[name], state=state)

    async def list_all(self) -> tuple[BackupSeen, ...]:
        return tuple(self.seen.values())

    async def start(self, schedule: str, name: str, owner: str) -> BackupSeen:
        self.started.append(name)
        return self.add(name)


def work_of(max_backup_age: timedelta | None = None) -> JailBackup:
    work = JailBackup(
        kubernetes_conn_id="kubernetes_default",
        namespace="soperator",
        schedule="soperator-jail",
        max_backup_age=max_backup_age,
        keys=("q6befiawjvkz_3", "r7cfgjbxkwla_3"),
        task="upgrade/run/backup/-1",
        since=NOW,
        deadline=NOW + timedelta(days=1),
    )
    read: JailBackup = Work.read(work.write())
    return read.begin(LOG)


def step(work: JailBackup, backups: Any) -> Any:
    return asyncio.run(work.step(backups))


def test_it_is_made_once_and_awaited() -> None:
    work, backups = work_of(), Backups()
    assert step(work, backups) is None
    assert step(work, backups) is None
    backups.ends(SECOND, "complete")
    result = step(work, backups)
    assert (result["backup"], result["is_new"], backups.started) == (SECOND, True, [SECOND])


@pytest.mark.parametrize(("state", "started"), [("running", []), ("complete", []), ("failed", [SECOND])])
def test_a_retry_continues_with_the_one_of_an_earlier_try_unless_that_has_failed(
    state: str, started: list[str]
) -> None:
    backups = Backups(**{FIRST: (state, 1.0)})
    result = step(work_of(), backups)
    assert backups.started == started
    assert bool(result) == (state == "complete")


def test_one_that_fails_fails_the_task_and_says_why() -> None:
    work, backups = work_of(), Backups()
    step(work, backups)
    backups.ends(SECOND, "failed")
    with pytest.raises(WorkFailed, match=f"backup {SECOND} of the jail has failed: 1 job"):
        step(work, backups)


def test_none_is_made_where_another_is_young_enough() -> None:
    backups = Backups(**{"soperator-jail-backup-abcde": ("complete", 3.0), "later": ("failed", 1.0)})
    result = step(work_of(timedelta(hours=4)), backups)
    assert (result["backup"], result["is_new"], backups.started) == ("soperator-jail-backup-abcde", False, [])
    assert step(work_of(timedelta(hours=2)), backups) is None
    assert backups.started == [SECOND]
