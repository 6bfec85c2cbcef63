"""Active checks of a namespace and their runs: read, begun by hand, and ended."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_soperator.kubernetes.known import ACTIVE_CHECK, CRON_JOB, JOB
from airflow_provider_soperator.kubernetes.objects import ObjectMissing, Objects
from airflow_provider_soperator.soperator.checks import CheckSeen, RunSeen, UnknownCheck, find, job_of
from airflow_provider_soperator.transports.transport_errors import ConnectRefused, TransportError, is_conflict


class ActiveChecks:
    """The checks among the objects of a namespace."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def list_all(self) -> tuple[CheckSeen, ...]:
        return tuple(map(CheckSeen.read, await self._objects.list_all(ACTIVE_CHECK)))

    async def find(self, said: str) -> CheckSeen:
        """The check of this name; ``ObjectMissing`` says which there are."""
        try:
            return find(await self.list_all(), said)
        except UnknownCheck as error:
            raise ObjectMissing(str(error), f"the namespace is {self._objects.namespace}") from None

    async def runs(self) -> tuple[RunSeen, ...]:
        """Those of all checks that Kubernetes has not deleted, as it does with old ones."""
        return tuple(map(RunSeen.read, await self._objects.list_all(JOB)))

    async def start(self, check: CheckSeen, name: str, owner: str) -> RunSeen:
        """Begin a run, unless one of this name is there already."""
        try:
            cron_job = await self._objects.read(CRON_JOB, check.name)
        except ObjectMissing as error:
            others = f", and {', '.join(check.depends_on)} have completed" if check.depends_on else ""
            raise ConnectRefused(
                f"the check {check.name} has no CronJob yet",
                f"Soperator makes it once the cluster is available{others}",
            ) from error
        try:
            return RunSeen.read(await self._objects.create(JOB, job_of(cron_job, name, owner)))
        except TransportError as error:
            if not is_conflict(error):
                raise
            return RunSeen.read(await self._objects.read(JOB, name))

    async def end(self, run: str) -> None:
        """End a run; what it has submitted to Slurm goes on."""
        with suppress(ObjectMissing):
            await self._objects.delete(JOB, run)
