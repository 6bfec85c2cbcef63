"""What accounting has of ended jobs: figures, and who cancelled them, asked once for all that end together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from async_timeout import timeout

from airflow_provider_soperator.client.output import Ask
from airflow_provider_soperator.client.pace import Pace
from airflow_provider_soperator.client.poller import GATHERING
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.shared import SharedAnswers
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS, name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase

#: Seconds that accounting may take: a task must not wait for one that lags far behind, or does not answer.
PATIENCE = 5.0
#: Seconds between two questions: accounting lags by a fraction of one, as a rule.
PAUSE = 0.5
#: A slow answer costs slurmdbd as much; the pause after it is this many times as long.
_OF_EFFORT = 4.0


@dataclass(eq=False)
class _Ended:
    """A job that has ended, and the records of its parts."""

    status: JobStatus
    found: dict[JobId, AccountingJob] = field(default_factory=dict)
    is_done: bool = False

    @property
    def is_asked_for(self) -> bool:
        has_any = any(part.nodelist or _is_unattributed(part) for part in self.status.parts)
        return has_any and not self.status.lost

    def read(self, records: Iterable[AccountingJob]) -> None:
        by_id = {record.id: record for record in records}
        for part in self.status.parts:
            record = by_id.get(part.id)
            # The number may have been another job's before, and the last run after a requeue may not be there yet.
            if record and record.state.base is part.state.base and record.name == name_in_accounting(part.name):
                runs = tuple(run for run in record.earlier_runs if run.name == record.name)
                self.found[part.id] = replace(record, earlier_runs=runs)
        # A part without nodes has no figures, and may have no record.
        self.is_done = all(part.id in self.found or not part.nodelist for part in self.status.parts)

    def completed(self) -> JobStatus:
        parts = tuple(
            replace(part, state=self.found[part.id].state) if part.id in self.found and _is_unattributed(part) else part
            for part in self.status.parts
        )
        return replace(self.status, parts=parts, accounted=tuple(self.found.values()))


class JobAccounts:
    """Asks in rounds, each for all jobs that wait then. Without accounting, or while it fails, none waits."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: list[_Ended] = []
        self._rounds = SharedAnswers()
        self._pace = Pace()
        #: When the next question may be asked, and until when none is answered.
        self._due = self._silent_until = 0.0

    async def complete(self, status: JobStatus) -> JobStatus:
        """The status of a job that is over, with its records in accounting, and the users who cancelled parts of it."""
        ended = _Ended(status)
        if not ended.is_asked_for or time.monotonic() < self._silent_until:
            return status
        self._waiting.append(ended)
        try:
            async with timeout(PATIENCE):
                while not ended.is_done:
                    await self._rounds.get(None, self._round, max_age=0)
        except Exception:
            # No failure of accounting, nor of its reading, is a part of the job's end.
            pass
        finally:
            self._waiting.remove(ended)
        return ended.completed()

    async def _round(self) -> None:
        await asyncio.sleep(max(GATHERING, self._due - time.monotonic()))
        asked = list(self._waiting)
        ids = tuple(dict.fromkeys(one.status.id.whole for one in asked))
        started = time.monotonic()
        records: dict[JobId, list[AccountingJob]] = {}
        try:
            for start in range(0, len(ids), MOST_IDS):
                for record in await self._ask(Accounting(ids=ids[start : start + MOST_IDS], steps=True)):
                    records.setdefault(record.id.whole, []).append(record)
        except ClusterError:
            self._silent_until = time.monotonic() + self._pace.after_failure()
            raise
        self._pace.after_answer()
        now = time.monotonic()
        self._due = now + max(PAUSE, _OF_EFFORT * (now - started))
        for one in asked:
            one.read(records.get(one.status.id.whole, ()))


def _is_unattributed(part: Job) -> bool:
    return part.state.base is JobBase.CANCELLED and part.state.cancelled_by is None
