"""One job from its submission to its end, as a task sees it: what happens to it, and what it prints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_soperator.clients.client import AsyncSlurmClient
from airflow_provider_soperator.clients.tails import Tail
from airflow_provider_soperator.clients.watcher import POLL_INTERVAL
from airflow_provider_soperator.slurm.console import Console
from airflow_provider_soperator.slurm.filenames import expand
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.keys import SubmissionKey
from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.requests.once import Submitted
from airflow_provider_soperator.slurm.status import JobStatus

#: Elements of an array whose output is shown; of others it is said where it is.
MOST_SHOWN = 16
#: Bytes of each file that are shown after the end of a job.
MOST_AT_THE_END = 1 << 20


@dataclass(frozen=True)
class Printed:
    """Some lines that a part of the job has printed."""

    part: JobId
    path: str
    lines: list[str]
    #: Whether they come from the job's own file for errors.
    is_error: bool = False


@dataclass
class _Output:
    """A file that a part of the job writes."""

    part: JobId
    tail: Tail
    is_error: bool
    console: Console = field(default_factory=Console)

    def printed(self, data: bytes) -> Printed | None:
        lines = self.console.feed(data)
        return Printed(self.part, self.tail.path, lines, self.is_error) if lines else None


class JobRun:
    """Submits a job exactly once, and follows it.

    ``keys`` are those of the tries that may have submitted it before, and last that of this one. A try goes on with
    what an earlier one has begun, unless that has failed by now.
    """

    def __init__(
        self,
        client: AsyncSlurmClient,
        job: BatchJob,
        keys: Sequence[SubmissionKey],
        *,
        since: datetime | None = None,
        poll_interval: float = POLL_INTERVAL,
        show_output: bool = True,
    ) -> None:
        self._client, self._job, self._keys, self._since = client, job, tuple(keys), since
        self._poll_interval, self._show_output = poll_interval, show_output
        self._outputs: dict[str, _Output] = {}
        self._submission: asyncio.Future[Submitted] | None = None
        #: What was submitted or adopted, once it has been.
        self.submitted: Submitted | None = None

    async def submit(self) -> Submitted:
        """The job's id; a submission that has begun is finished also if whoever waits for it is cancelled."""
        if self._submission is None:
            self._submission = asyncio.ensure_future(self._submit())
        self.submitted = await asyncio.shield(self._submission)
        return self.submitted

    async def _submit(self) -> Submitted:
        *earlier, own = self._keys
        if earlier:
            adopted = await self._client.find(self._job, earlier, since=self._since)
            if adopted:
                return adopted
        return await self._client.submit(self._job, own, since=self._since)

    async def cancel(self) -> None:
        """The job is gone, also if its submission is under way."""
        if self._submission is None:
            # Somebody else may have submitted it, before this one took over.
            self._submission = asyncio.ensure_future(self._find_own())
        submitted = await asyncio.shield(self._submission)
        if submitted.id:
            await self._client.cancel(submitted.id)

    async def _find_own(self) -> Submitted:
        return await self._client.find(self._job, self._keys, since=self._since) or Submitted(None)

    async def follow(self) -> AsyncIterator[JobStatus | Printed]:
        """News and lines as they come; the last news is the job's end, and after it comes the rest of its output."""
        submitted = self.submitted or await self.submit()
        assert submitted.id is not None
        watch = self._client.watch(submitted.id, mine=True, poll_interval=self._poll_interval)
        news = asyncio.ensure_future(watch.next())
        reads: dict[asyncio.Future[bytes], _Output] = {}
        status: JobStatus | None = None
        try:
            while status is None or not status.is_over:
                waiting: list[asyncio.Future[Any]] = [news, *reads]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for read in [read for read in reads if read.done()]:
                    output = reads.pop(read)
                    if printed := output.printed(read.result()):
                        yield printed
                    if not output.tail.trouble:
                        reads[asyncio.ensure_future(output.tail.next())] = output
                if news.done():
                    status = _known(news.result())
                    yield status
                    for output in self._new_outputs(status):
                        reads[asyncio.ensure_future(output.tail.next())] = output
                    news = asyncio.ensure_future(watch.next())
            for read in filter(asyncio.Future.done, list(reads)):
                # Taken from its file while the last news were told: it would not come again.
                if printed := reads.pop(read).printed(read.result()):
                    yield printed
        finally:
            watch.close()
            news.cancel()
            for read in reads:
                read.cancel()
            for output in self._outputs.values():
                output.tail.close()
        async for printed in self._rest():
            yield printed

    def _new_outputs(self, status: JobStatus) -> list[_Output]:
        if not self._show_output:
            return []
        found = []
        for part in status.parts:
            # While it waits it has printed nothing, or nothing that still holds after a requeue.
            if part.state.is_pending or len(self._outputs) >= MOST_SHOWN:
                continue
            for path, is_error in self._paths(part):
                if path and path not in self._outputs:
                    self._outputs[path] = _Output(part.id, self._client.tail(path), is_error)
                    found.append(self._outputs[path])
        return found

    def _paths(self, part: Job) -> list[tuple[str, bool]]:
        # Accounting does not keep the path before 24.05, but it was ours to choose.
        paths = [(expand(part.stdout or self._job.output or "", part), False)]
        if self._job.error:
            paths.append((expand(self._job.error, part), True))
        return paths

    async def _rest(self) -> AsyncIterator[Printed]:
        for output in self._outputs.values():
            data = b"" if output.tail.trouble else await output.tail.rest(MOST_AT_THE_END)
            lines = output.console.feed(data) + output.console.end()
            if lines:
                yield Printed(output.part, output.tail.path, lines, output.is_error)


def _known(status: JobStatus | None) -> JobStatus:
    assert status is not None, "the watch is closed by nobody else"
    return status
