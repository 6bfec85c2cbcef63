"""A backup of the jail by k8up: made once for a task, or found young enough, and followed until it is complete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.soperator.conditions import Object, conditions_of, parse_time
from airflow_provider_soperator.soperator.kinds import BACKUP, BACKUP_SCHEDULE
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.soperator.workloads import OWNER
from airflow_provider_soperator.work.protocols import Work, WorkFailed

RIGHTS = "get on schedules and get, list and create on backups of k8up.io"
#: The prune of the chart's Schedule takes its own tag only, so what is made before an upgrade stays.
_TAGS = ["airflow"]
#: Fields of a Schedule for all that it makes.
_COMMON = ("backend", "podSecurityContext", "podConfigRef")
#: Fields of a Schedule about its times.
_OF_TIMES = ("schedule", "concurrentRunsAllowed")
#: k8up calls a backup without any volume claim a success.
_EMPTY = "nothing to backup"
#: Reasons for which a Pod that runs before the backup has not failed.
_PODS_FINE = ("Succeeded", "Waiting", "NoPreBackupPodsFound", "Ready")


@dataclass(frozen=True, kw_only=True)
class BackupSeen:
    """A Backup, and how far it has come."""

    name: str
    #: What comes into the jail after this is not surely in it.
    created: datetime
    state: Literal["running", "complete", "failed"] = "running"
    why: str = ""

    @classmethod
    def read(cls, backup: Object) -> BackupSeen:
        about, conditions = backup["metadata"], conditions_of(backup)
        created = parse_time(about["creationTimestamp"])
        assert created is not None
        completed, pods = conditions.get("Completed"), conditions.get("PreBackupPodReady")
        progress = completed or conditions.get("Progressing") or conditions.get("Ready")
        state: Literal["running", "complete", "failed"] = "running"
        why = progress.why if progress else "k8up has not begun it"
        if pods and pods.is_false and pods.reason not in _PODS_FINE:
            state, why = "failed", pods.why
        elif completed and completed.is_true and completed.message == _EMPTY:
            state, why = "failed", "k8up has found nothing to back up: the claim of the jail needs k8up.io/backup=true"
        elif completed and completed.is_true:
            # It is also true, for another reason, of one that has failed.
            state = "complete" if completed.reason == "Succeeded" else "failed"
        return cls(name=about["name"], created=created, state=state, why=why)


def newest_complete(backups: Sequence[BackupSeen]) -> BackupSeen | None:
    return max((one for one in backups if one.state == "complete"), key=lambda one: one.created, default=None)


def too_old(backups: Sequence[BackupSeen], max_age: timedelta, now: datetime) -> str:
    """Why no complete backup is young enough; empty if one is."""
    newest = newest_complete(backups)
    if newest is None:
        return f"none of {len(backups)} backups is complete" if backups else "there is no backup"
    age = now - newest.created
    if age <= max_age:
        return ""
    return f"the newest complete backup, {newest.name}, is {_rounded(age)} old, and may be {_rounded(max_age)}"


def _rounded(age: timedelta) -> str:
    return str(timedelta(seconds=round(age.total_seconds())))


def backup_of(schedule: Object, name: str, owner: str) -> Object:
    """The Backup that a Schedule would make now; ``owner`` is the task that makes it."""
    said = schedule["spec"]
    common = {field: said[field] for field in _COMMON if field in said}
    own = {field: value for field, value in (said.get("backup") or {}).items() if field not in _OF_TIMES}
    return {
        "apiVersion": BACKUP.api_version,
        "kind": BACKUP.kind,
        "metadata": {"name": name, "annotations": {OWNER: owner}},
        "spec": {**common, **own, "tags": _TAGS},
    }


class JailBackups:
    """The backups of a namespace, where k8up backs up each claim that is marked for it: the jail's."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def list_all(self) -> tuple[BackupSeen, ...]:
        # A selector may leave the jail out.
        found = await self._objects.list_all(BACKUP)
        return tuple(BackupSeen.read(one) for one in found if not one["spec"].get("labelSelectors"))

    async def start(self, schedule: str, name: str, owner: str) -> BackupSeen:
        """Make a backup as a Schedule makes it, or return the existing one of this name."""
        try:
            found = await self._objects.read(BACKUP_SCHEDULE, schedule)
        except ObjectMissing as error:
            raise ObjectMissing(
                f"k8up has no Schedule {schedule} in namespace {self._objects.namespace}, which knows where backups go",
                "install Soperator's chart soperator-backup-config (backups_enabled in the recipe), or name the "
                "Schedule of the jail",
            ) from error
        return BackupSeen.read(await self._objects.create_once(BACKUP, backup_of(found, name, owner)))


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
