"""Calls that list, start and end the runs of active checks in a namespace."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from airflow_provider_soperator.soperator.active_checks import CheckSeen, RunSeen, UnknownCheck, find
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import ACTIVE_CHECK, CRON_JOB, JOB
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.transports.transport_errors import ConnectRefused, TransportError, is_conflict

#: Kubernetes copies a Job's name into a label, which is limited to this length.
_NAME_LIMIT = 63
#: The annotation that ``kubectl create job --from`` sets.
_BY_HAND = {"cronjob.kubernetes.io/instantiate": "manual"}
_OWNER = "airflow.apache.org/task"


class ActiveChecks:
    """The active checks of a namespace."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def list_all(self) -> tuple[CheckSeen, ...]:
        return tuple(map(CheckSeen.read, await self._objects.list_all(ACTIVE_CHECK)))

    async def find(self, said: str) -> CheckSeen:
        """The check of this name; ``ObjectMissing`` lists all if there is none."""
        try:
            return find(await self.list_all(), said)
        except UnknownCheck as error:
            raise ObjectMissing(str(error), f"the namespace is {self._objects.namespace}") from None

    async def runs(self) -> tuple[RunSeen, ...]:
        """Runs of all checks, except old ones that Kubernetes has deleted."""
        return tuple(map(RunSeen.read, await self._objects.list_all(JOB)))

    async def start(self, check: CheckSeen, name: str, owner: str) -> RunSeen:
        """Start a run, or return the existing one of this name."""
        try:
            cron_job = await self._objects.read(CRON_JOB, check.name)
        except ObjectMissing as error:
            others = f", and {', '.join(check.depends_on)} have completed" if check.depends_on else ""
            raise ConnectRefused(
                f"the check {check.name} has no CronJob yet",
                f"Soperator creates it once the cluster is available{others}",
            ) from error
        try:
            return RunSeen.read(await self._objects.create(JOB, job_of(cron_job, name, owner)))
        except TransportError as error:
            if not is_conflict(error):
                raise
            return RunSeen.read(await self._objects.read(JOB, name))

    async def end(self, run: str) -> None:
        """Delete a run's Job; its Slurm jobs continue."""
        with suppress(ObjectMissing):
            await self._objects.delete(JOB, run)


def job_name(check: str, key: str) -> str:
    """The name of the Job for a key.

    >>> job_name("gpu-checks", "q6befiawjvkz")
    'gpu-checks-airflow-q6befiawjvkz'
    """
    suffix = f"-airflow-{key}"
    return check[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def job_of(cron_job: Object, name: str, owner: str) -> dict[str, Any]:
    """The Job of a run, as ``kubectl create job --from`` makes it; ``owner`` is the task that starts it."""
    about, template = cron_job["metadata"], cron_job["spec"]["jobTemplate"]
    said, pod = template.get("metadata") or {}, template["spec"]["template"].get("metadata") or {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            # Soperator follows Jobs by a label that only their Pods get. Kubernetes copies it to a Job only if the
            # Job has no labels.
            "labels": {**(pod.get("labels") or {}), **(said.get("labels") or {})},
            "annotations": {**(said.get("annotations") or {}), **_BY_HAND, _OWNER: owner},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": about["name"],
                    "uid": about["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": template["spec"],
    }
