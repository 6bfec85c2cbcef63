"""A backup of the jail: made once for a task, or found young enough, and followed until it is complete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.soperator.backups import RIGHTS, BackupSeen, JailBackups, newest_complete, too_old
from airflow_provider_soperator.soperator.objects import ObjectMissing
from airflow_provider_soperator.work.protocols import Work, WorkFailed


@asynccontextmanager
async def jail_backups(kubernetes_conn_id: str, namespace: str) -> AsyncIterator[JailBackups]:
    async with SoperatorClusterHook(kubernetes_conn_id, namespace).objects(rights=RIGHTS) as objects:
        yield JailBackups(objects)


async def lacks_backup(kubernetes_conn_id: str, namespace: str, max_age: timedelta) -> str:
    """Why the jail has no complete backup that is young enough; empty if it has one."""
    async with jail_backups(kubernetes_conn_id, namespace) as backups:
        try:
            return too_old(await backups.list_all(), max_age, datetime.now(timezone.utc))
        except ObjectMissing as error:
            return error.what


@dataclass(kw_only=True)
class JailBackup(Work[JailBackups]):
    """A backup that is made, or found, and followed to its end."""

    kubernetes_conn_id: str
    namespace: str
    #: The Schedule of k8up that says where backups go.
    schedule: str
    #: One up to this age is good enough; None: only one of this task.
    max_backup_age: timedelta | None
    #: Keys of the tries of the task since it was last cleared, the last of which is this one.
    keys: tuple[str, ...]
    #: The task, shown to readers of the Backup.
    task: str

    def open(self) -> Any:
        return jail_backups(self.kubernetes_conn_id, self.namespace)

    async def step(self, backups: JailBackups) -> dict[str, Any] | None:
        there = await backups.list_all()
        names = [f"jail-airflow-{key.replace('_', '-')}" for key in self.keys]
        mine = next((one for name in reversed(names) for one in there if one.name == name), None)
        # This try makes another one where that of an earlier try has failed.
        if mine is None or (mine.state == "failed" and mine.name != names[-1]):
            newest, most = newest_complete(there), self.max_backup_age
            if newest and most is not None and self.since - newest.created <= most:
                self._log.info("Backup %s of %s is young enough: no other is made", newest.name, newest.created)
                return self._result(newest, is_new=False)
            mine = await backups.start(self.schedule, names[-1], self.task)
        if mine.state == "failed":
            raise WorkFailed(f"backup {mine.name} of the jail has failed: {mine.why}")
        self._reach(f"backup {mine.name} is {mine.state}: {mine.why}")
        return self._result(mine, is_new=True) if mine.state == "complete" else None

    async def undo(self, backups: JailBackups) -> str:
        return "A backup that has begun goes on"

    def _result(self, one: BackupSeen, *, is_new: bool) -> dict[str, Any]:
        return {"backup": one.name, "created": one.created.isoformat(), "is_new": is_new, "seconds": self.seconds}
