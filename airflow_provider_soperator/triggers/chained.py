"""A job among others that wait for it, and what becomes of these."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.pipelines.graph import is_ended, is_met
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.triggers import task_sdk

#: Seconds between two looks at tasks that may be tried once more.
_LOOK = 10.0
#: Why a job waits that waits in vain.
_NEVER = "DependencyNeverSatisfied"


@dataclass(frozen=True)
class Chain:
    """The jobs around that of a task, by their ids."""

    #: The one that was submitted ahead for the task itself.
    ahead: str = ""
    #: Those that wait for it.
    waiting: Sequence[str] = ()
    #: Those that can never run once it has failed.
    doomed: Sequence[str] = ()
    #: What the task follows that may have begun before it ended: tasks, and how it follows them.
    follows: Sequence[Sequence[str]] = ()

    @classmethod
    def read(cls, said: dict[str, Any] | None) -> Chain:
        return cls(**said) if said else cls()

    async def relink(self, client: AsyncSlurmClient, job: JobId, earlier: Sequence[str], log: Logger) -> None:
        """Have the jobs that wait for an earlier try's job wait for this one; ``earlier`` has the keys of these."""
        if not self.waiting or str(job) == self.ahead:
            return
        try:
            suffixes = tuple(SubmissionKey(key).suffix for key in earlier)
            known = await client.ask(ListJobs(mine=True, name_suffixes=suffixes)) if suffixes else ()
            before = {found.id.whole for found in known} | ({JobId.parse(self.ahead)} if self.ahead else set())
            for old in sorted(before - {job}):
                for relinked in await client.relink(map(JobId.parse, self.waiting), old, job):
                    log.info("Job %s waits for job %s now, and no longer for job %s", relinked, job, old)
        except (SlurmError, TransportError) as error:
            # Their own tasks see to it when it is their turn.
            log.warning("The jobs that wait for this one could not be told of it: %s", error)

    def is_stuck(self, status: JobStatus) -> bool:
        return bool(self.ahead) and any(part.reason == _NEVER for part in status.parts)

    async def free(self, client: AsyncSlurmClient, job: JobId, ti: Any, log: Logger) -> None:
        """Let a job run that waits in vain, or end it, once it is clear which.

        Airflow may have gone past what it waits for, as when a job was forgiven or its task marked by hand.
        """
        try:
            await self._free(client, job, ti, log)
        except (SlurmError, TransportError) as error:
            log.warning("Job %s waits in vain, and could not be let go: %s", job, error)

    async def _free(self, client: AsyncSlurmClient, job: JobId, ti: Any, log: Logger) -> None:
        names = [name for name, _ in self.follows]
        while names:
            states = await task_sdk.states(ti, names)
            if all(is_ended(state) for name in names for state in states[name].values()):
                break
            # Another try may mend it.
            await asyncio.sleep(_LOOK)
        else:
            states = {}
        if all(is_met(kind, state) for name, kind in self.follows for state in states[name].values()):
            if await client.let_go(job):
                log.info("Job %s need not wait for jobs that have failed: its task's turn has come", job)
        else:
            await client.cancel_waiting([job])
            log.info("Job %s waits for what can never come: what had not begun of it is cancelled", job)

    async def give_up(self, client: AsyncSlurmClient) -> None:
        """Take those out of the queue that can never run."""
        await client.cancel_waiting(map(JobId.parse, self.doomed))
