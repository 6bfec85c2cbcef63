"""One job from its submission to its end, as a task sees it: its states and its output."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.diagnosis import diagnose
from airflow_provider_soperator.client.output import Console, Tail
from airflow_provider_soperator.client.poller import POLL_INTERVAL
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import array_indices, array_text
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, expand_filename
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.requests.submission import Submitted, asked_for
from airflow_provider_soperator.transports.transport_errors import TransportError

#: Output files that are streamed; the others are only counted.
MOST_SHOWN = 16
#: Bytes of each file that are streamed after the end of a job.
MOST_AT_THE_END = 1 << 20
#: Seconds that a diagnosis may take: a failed task must not wait for a cluster that does not answer.
DIAGNOSIS_TIME = 20.0


@dataclass(frozen=True)
class Printed:
    """Lines that a part of the job has printed."""

    part: JobId
    path: str
    lines: list[str]
    #: True if they come from the job's separate error file.
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
    """Submits a job exactly once, and follows it to its end.

    ``keys`` are the keys of the earlier tries, and last that of this one. A try continues with the job of an earlier
    one unless that has failed by now. Jobs with keys in ``replaced`` are cancelled: their task was cleared, and the
    process that should have cancelled them may have died. With a ``log`` a submission and a cancellation wait while the
    cluster is away. ``tell_of_nodes`` returns lines about the nodes of a failed job, for what Slurm does not know.
    """

    def __init__(
        self,
        client: AsyncSlurmClient,
        job: BatchJob,
        keys: Sequence[SubmissionKey],
        *,
        replaced: Sequence[SubmissionKey] = (),
        since: datetime | None = None,
        poll_interval: float = POLL_INTERVAL,
        show_output: bool = True,
        log: Logger | None = None,
        tell_of_nodes: Callable[[Sequence[str]], Awaitable[list[str]]] | None = None,
    ) -> None:
        self._log = log
        self.use(client)
        self._job, self._keys, self._since = job, tuple(keys), since
        self._replaced = tuple(replaced)
        self._poll_interval, self._show_output = poll_interval, show_output
        self._tell_of_nodes = tell_of_nodes
        self._outputs: dict[str, _Output] = {}
        self._submission: asyncio.Future[Submitted] | None = None
        self._is_taken_back = False
        #: The job that was submitted or adopted.
        self.submitted: Submitted | None = None
        #: Jobs of replaced tries that were cancelled, and those of this one.
        self.ended: tuple[JobId, ...] = ()
        self.cancelled: tuple[JobId, ...] = ()
        #: Parts whose output is not streamed, as there are too many.
        self._unshown: set[JobId] = set()

    def use(self, client: AsyncSlurmClient) -> None:
        """Go on with another client of the cluster, as when the connection was corrected."""
        self.client = client
        self._patient = client.patient(self._log) if self._log else client

    @property
    def earlier(self) -> list[str]:
        """The keys of the tries before this one."""
        return [key.text for key in self._keys[:-1]]

    async def submit(self) -> Submitted:
        """Submit the job. If this is cancelled, only what is under way is completed on the cluster."""
        if self._submission is None:
            self._submission = asyncio.ensure_future(self._submit())
        try:
            self.submitted = await asyncio.shield(self._submission)
        except asyncio.CancelledError:
            # Another process may go on with the task, or end it, while the cluster is away.
            self._take_back()
            raise
        return self.submitted

    def _take_back(self) -> bool:
        """Keep a submission from being sent, or sent again; True if it may be under way."""
        if self._submission is None or self._submission.done():
            return False
        if not self._is_taken_back:
            self._is_taken_back = True
            self._submission.cancel()
        return True

    async def _submit(self) -> Submitted:
        self.ended = await self._patient.cancel_keys(self._replaced)
        *earlier, own = self._keys
        if earlier:
            adopted = await self._patient.find(self._job, earlier, since=self._since)
            if adopted:
                return adopted
        return await self._patient.submit(self._job, own, since=self._since)

    async def cancel(self) -> None:
        """Cancel the job, even while its submission is under way, here or in a process that this one took over from."""
        is_under_way = self._take_back()
        self.cancelled = await self._patient.cancel_keys(self._keys)
        if is_under_way and self._submission:
            # What was under way has its answer then, and where nothing could withdraw it there is a job now.
            await asyncio.wait([self._submission])
            self.cancelled += await self._patient.cancel_keys(self._keys)

    async def unfinished(self) -> tuple[JobId, ...]:
        """The job, unless it has ended: its number alone may be another job's by now."""
        submitted = self.submitted
        if submitted is None or submitted.id is None:
            return ()
        assert submitted.key is not None
        return await self.client.unfinished({submitted.id: submitted.key})

    async def diagnosis(self, status: JobStatus) -> list[str]:
        """Lines of the diagnosis of a job that did not succeed."""
        try:
            async with timeout(DIAGNOSIS_TIME):
                lines, nodes = await run_steps_async(diagnose(status), self.client.ask)
        except asyncio.TimeoutError:
            return [f"No diagnosis: the cluster did not answer within {DIAGNOSIS_TIME:g} s"]
        told = await self._tell_of_nodes(nodes) if nodes and self._tell_of_nodes else []
        return lines + (["  Kubernetes", *(f"    {line}" for line in told)] if told else [])

    async def follow(self) -> AsyncIterator[JobStatus | Printed]:
        """States and output as they come; the last item is the job's end, after all of its output."""
        submitted = self.submitted or await self.submit()
        assert submitted.id is not None
        assert submitted.key is not None
        watch = self.client.watch(
            submitted.id,
            name=submitted.key.suffix,
            mine=True,
            poll_interval=self._poll_interval,
            indices=self._array_indices(),
        )
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
                    status = news.result()
                    assert status is not None, "only this run closes the watch"
                    if not status.is_over:
                        yield status
                    for output in self._new_outputs(status):
                        reads[asyncio.ensure_future(output.tail.next())] = output
                    news = asyncio.ensure_future(watch.next())
            for read in filter(asyncio.Future.done, list(reads)):
                # Read while the last status was yielded: it would not come again.
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
        # Before 24.05 accounting does not keep the path of the output, but the job names it.
        parts = tuple(replace(part, stdout=part.stdout or self._job.output or "") for part in status.parts)
        yield await self.client.accounts.complete(replace(status, parts=parts))

    def _array_indices(self) -> list[int]:
        """The indices of the submitted array, if they are known."""
        array = asked_for(self._job).array
        # What only Slurm understands, Slurm knows.
        with contextlib.suppress(ValueError):
            return [] if array is None else array_indices(array_text(array))
        return []

    def _new_outputs(self, status: JobStatus) -> list[_Output]:
        if not self._show_output:
            return []
        found = []
        for part in status.parts:
            # A pending job has no output, or only that of the run before a requeue.
            if part.state.is_pending:
                continue
            for path, is_error in self._paths(part):
                if not path or path in self._outputs:
                    continue
                if len(self._outputs) >= MOST_SHOWN:
                    self._unshown.add(part.id)
                else:
                    self._outputs[path] = _Output(part.id, self.client.tail(path), is_error)
                    found.append(self._outputs[path])
        return found

    def _paths(self, part: Job) -> list[tuple[str, bool]]:
        paths = [(expand_filename(part.stdout or self._job.output or "", part), False)]
        if self._job.error:
            paths.append((expand_filename(self._job.error, part), True))
        return paths

    async def _rest(self) -> AsyncIterator[Printed]:
        for output in self._outputs.values():
            tail, data, note = output.tail, b"", output.tail.trouble
            if not note:
                try:
                    data = await tail.rest(MOST_AT_THE_END)
                    note = f"{tail.left} more bytes" if tail.left else ""
                except (SlurmError, TransportError) as error:
                    # Missing output does not change how the job ended.
                    note = f"the rest: {error}"
            lines = output.console.feed(data) + output.console.end()
            if note:
                lines.append(f"(Not shown of {tail.path}: {note})")
            if lines:
                yield Printed(output.part, tail.path, lines, output.is_error)
        if self._unshown:
            first = min(self._unshown)
            lines = [f"(The output of {len(self._unshown)} more parts is not shown; read it on the cluster)"]
            yield Printed(first.whole, "", lines)
