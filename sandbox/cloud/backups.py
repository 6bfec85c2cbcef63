"""k8up as far as a sandbox needs it: Backups run as Jobs that end after a while, Schedules say when theirs would be.

As in v2.13.1, with ``skipWithoutAnnotation`` as Soperator's charts set it. A Job has no Pod: nothing is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.kube.objects import clone, dig, parse_timestamp
from sandbox.kube.store import ObjectStore

OWNED_BY = "k8up.io/owned-by"
ANNOTATION = "k8up.io/backup"
FINALIZER = "k8up.io/schedule"
#: Of the operator's own settings: how many Backups of each end stay, unless one says otherwise.
_KEPT = 3
_RANDOM = {
    "@hourly-random": "{minute} * * * *",
    "@daily-random": "{minute} {hour} * * *",
    "@weekly-random": "{minute} {hour} * * {weekday}",
    "@monthly-random": "{minute} {hour} {day} * *",
    "@yearly-random": "{minute} {hour} {day} {month} *",
}


class BackupController:
    """Moves every Backup and every Schedule on by one step at each look."""

    def __init__(self, store: ObjectStore, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        #: Those that end from now on fail: a fault.
        self.failing = False

    def sync(self) -> None:
        for schedule in self._store.list("schedules"):
            self._plan(schedule)
        for backup in self._store.list("backups"):
            self._advance(backup)

    # Backups

    def _advance(self, backup: dict[str, Any]) -> None:
        """As ``Provision`` of operator/backupcontroller/controller.go goes through it."""
        namespace, name = backup["metadata"]["namespace"], f"backup_{backup['metadata']['name']}"
        jobs = self._store.list("jobs", namespace, labels=f"{OWNED_BY}={name}")
        if jobs and not has_ended(backup):
            jobs = [self._run(backup, job) for job in jobs]
            self._report(backup, name, jobs)
        elif has_ended(backup):
            if dig(backup, "status.conditions[Scrubbed].reason") != "Succeeded":
                self._scrub(backup)
        elif not jobs:
            self._start(backup, name)

    def _start(self, backup: dict[str, Any], owner: str) -> None:
        metadata = backup["metadata"]
        none = condition("PreBackupPodReady", True, "NoPreBackupPodsFound", "no container definitions found")
        status = with_conditions(backup.get("status") or {}, none)
        claims = [claim for claim in self._store.list("pvc", metadata["namespace"]) if _is_backed_up(claim)]
        if claims:
            self._store.create("jobs", _job(backup, owner, claims), metadata["namespace"])
        else:
            # Success, and there is no snapshot.
            status = with_conditions(status, condition("Completed", True, "Succeeded", "nothing to backup"))
        self._write(backup, status)

    def _run(self, backup: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
        """Without its Secrets the container of a Job cannot be made, and its Pod waits for them for ever."""
        status = job.get("status") or {}
        if status.get("conditions") or not all(self._is_there(backup, key) for key in _secrets(backup)):
            return job
        began = parse_timestamp(status["startTime"]) if "startTime" in status else None
        if began is None:
            status = {"active": 1, "ready": 1, "startTime": timestamp()}
        elif self._store.now() - began < timedelta(seconds=self._seconds):
            return job
        elif self.failing:
            why = "Job has reached the specified backoff limit"
            failed = condition("Failed", True, "BackoffLimitExceeded", why)
            status = with_conditions({"startTime": status["startTime"], "failed": 7}, failed)
        else:
            ended = {"startTime": status["startTime"], "succeeded": 1, "completionTime": timestamp()}
            status = with_conditions(ended, condition("Complete", True, "CompletionsReached"))
        return self._store.patch(
            "jobs", job["metadata"]["name"], lambda old: {**old, "status": status}, job["metadata"]["namespace"]
        )

    def _is_there(self, backup: dict[str, Any], key: tuple[str, str]) -> bool:
        fields = f"metadata.name={key[0]}"
        found = self._store.list("secrets", backup["metadata"]["namespace"], fields=fields)
        return bool(found) and (not key[1] or key[1] in (found[0].get("data") or {}))

    def _report(self, backup: dict[str, Any], owner: str, jobs: list[dict[str, Any]]) -> None:
        ends = {type_: sum(_has(job, type_) for job in jobs) for type_ in ("Complete", "Failed")}
        succeeded, failed = ends["Complete"], ends["Failed"]
        running = len(jobs) - succeeded - failed
        said = f'"{owner}" has {succeeded} succeeded, {failed} failed, and {running} started jobs'
        status = {**(backup.get("status") or {}), "started": True}
        if succeeded == len(jobs) or failed:
            how = ("Failed", "has failed") if failed else ("Succeeded", "completed successfully")
            # A reader of the status alone takes a failed one for a success.
            completed = condition("Completed", True, how[0], said)
            finished = condition("Progressing", False, "Finished", f"job '{owner}' {how[1]}")
            status = with_conditions({**status, "finished": True}, completed, finished)
            status["conditions"] = [one for one in status["conditions"] if one["type"] != "Ready"]
        else:
            progressing = condition("Progressing", True, "Started", "The job is progressing")
            status = with_conditions(status, condition("Ready", True, "Ready", said), progressing)
        self._write(backup, status)

    def _scrub(self, backup: dict[str, Any]) -> None:
        """Delete the oldest of the namespace that ended the one way or the other, over the limits of this one."""
        namespace, spec = backup["metadata"]["namespace"], backup.get("spec") or {}
        everyone = sorted(
            self._store.list("backups", namespace),
            key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]),
        )
        deleted = 0
        for reason, field in (("Succeeded", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            ended = [one for one in everyone if dig(one, "status.conditions[Completed].reason") == reason]
            most = spec.get(field, spec.get("keepJobs", _KEPT))
            for one in ended[: max(0, len(ended) - max(0, most))]:
                self._store.delete("backups", one["metadata"]["name"], namespace)
                deleted += 1
        scrubbed = condition("Scrubbed", True, "Succeeded", f"Deleted {deleted} resources")
        if any(one["metadata"]["name"] == backup["metadata"]["name"] for one in self._store.list("backups", namespace)):
            self._write(backup, with_conditions(backup["status"], scrubbed))

    # Schedules

    def _plan(self, schedule: dict[str, Any]) -> None:
        metadata = schedule["metadata"]
        held = metadata.get("finalizers") or []
        if "deletionTimestamp" in metadata:
            if FINALIZER in held:
                self._hold(schedule, [one for one in held if one != FINALIZER])
            return
        if FINALIZER not in held:
            self._hold(schedule, [*held, FINALIZER])
        status = {key: value for key, value in (schedule.get("status") or {}).items() if key != "effectiveSchedules"}
        if generated := list(_effective(schedule)):
            status["effectiveSchedules"] = generated
        self._write(schedule, with_conditions(status, condition("Ready", True, "Ready", "The resource is ready")))

    def _hold(self, schedule: dict[str, Any], finalizers: list[str]) -> None:
        metadata = schedule["metadata"]
        patch = {"metadata": {"finalizers": finalizers}}
        self._store.patch("schedules", metadata["name"], patch, metadata["namespace"])

    def _write(self, thing: dict[str, Any], status: dict[str, Any]) -> None:
        if status != thing.get("status"):
            metadata = thing["metadata"]
            patch = {"status": status}
            self._store.patch(
                f"{thing['kind'].lower()}s", metadata["name"], patch, metadata["namespace"], part="status"
            )


def has_ended(backup: dict[str, Any]) -> bool:
    return str(dig(backup, "status.conditions[Completed].status")) == "True"


def _has(job: dict[str, Any], type_: str) -> bool:
    return str(dig(job, f"status.conditions[{type_}].status")) == "True"


def _is_backed_up(claim: dict[str, Any]) -> bool:
    annotations = claim["metadata"].get("annotations") or {}
    return dig(claim, "status.phase") == "Bound" and annotations.get(ANNOTATION, "").lower() in ("true", "t", "1")


def _job(backup: dict[str, Any], owner: str, claims: list[dict[str, Any]]) -> dict[str, Any]:
    metadata, spec = backup["metadata"], backup.get("spec") or {}
    names = [claim["metadata"]["name"] for claim in claims]
    tags = [word for tag in spec.get("tags") or [] for word in ("--tag", tag)]
    container = {
        "name": "backup",
        "image": "ghcr.io/k8up-io/k8up:v2.13.1",
        "command": ["/usr/local/bin/k8up", "restic"],
        "args": ["-varDir", "/k8up", *tags],
        "volumeMounts": [{"name": name, "mountPath": f"/data/{name}", "readOnly": True} for name in names],
    }
    pod = {
        "restartPolicy": "OnFailure",
        "securityContext": clone(spec.get("podSecurityContext") or {}),
        "containers": [container],
        "volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names],
    }
    owned = {"apiVersion": backup["apiVersion"], "kind": "Backup", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": f"backup-{metadata['name']}-0",
            "labels": {"k8upjob": "true", "k8up.io/type": "backup", OWNED_BY: owner},
            "ownerReferences": [{**owned, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {"backoffLimit": 6, "template": {"metadata": {"labels": {"k8upjob": "true"}}, "spec": pod}},
    }


def _secrets(backup: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The Secrets, and keys of them, that the container of a Backup's Job gets its environment from."""
    backend = dig(backup, "spec.backend") or {}
    for part in (backend, *(value for value in backend.values() if isinstance(value, dict))):
        for field, value in part.items():
            if field.endswith("SecretRef") and isinstance(value, dict):
                yield str(value.get("name")), str(value.get("key", ""))
    for source in backend.get("envFrom") or []:
        if "secretRef" in source:
            yield str(source["secretRef"]["name"]), ""


def _effective(schedule: dict[str, Any]) -> Iterator[dict[str, str]]:
    """When the jobs of a Schedule run that leave the minute to k8up; it comes from the name, and stays."""
    metadata = schedule["metadata"]
    for job in ("archive", "backup", "check", "prune", "restore"):
        wanted = dig(schedule, f"spec.{job}.schedule")
        if wanted in _RANDOM:
            seed = f"{metadata['namespace']}/{metadata['name']}@{job}"
            number = int(hashlib.sha1(seed.encode()).hexdigest(), 16)
            parts = {"minute": number % 60, "hour": number % 24, "weekday": number % 6}
            parts |= {"day": number % 27 + 1, "month": number % 12 + 1}
            yield {"jobType": job, "generatedSchedule": _RANDOM[wanted].format(**parts)}
