"""One job from its submission to its end, as a task sees it: its states and its output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.diagnosis import diagnose, hindrances
from airflow_provider_soperator.client.output import Console, Tail
from airflow_provider_soperator.client.poller import POLL_INTERVAL
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.files import JobFolder, Piece, ReadPieces
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import (
    OF_ELEMENTS,
    Job,
    JobStatus,
    expand_filename,
    letters_of,
    state_of,
)
from airflow_provider_soperator.slurm.option_values import as_words
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for, indices_asked_for
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: Elements of an array whose output is shown, of those that have failed and of the others; the rest are only counted.
MOST_SHOWN = 50
#: Bytes that are shown of the output of each.
MOST_OF_ELEMENT = 64 << 10
#: The end of the output of a failed job: bytes that are read, and lines of them.
MOST_OF_END, LAST_LINES = 4096, 10
#: Bytes of each file that are streamed after the end of a job.
MOST_AT_THE_END = 1 << 20
#: Seconds that a diagnosis may take, and the end of the output: a failed task must not wait for a cluster that is away.
DIAGNOSIS_TIME = 20.0
#: The letters of patterns that make a file one of this job alone: its number, and its name, which has its key.
_OF_JOB = frozenset("AJjx")
#: The states of jobs that do run, or have come to an end of their own. Others may have ended before they began.
_RUN = frozenset({JobBase.RUNNING, JobBase.COMPLETED, JobBase.FAILED, JobBase.TIMEOUT, JobBase.OUT_OF_MEMORY})


@dataclass(frozen=True)
class Printed:
    """Lines that a part of the job has printed."""

    part: JobId
    path: str
    lines: list[str]
    #: True if they come from the job's separate error file.
    is_error: bool = False
    #: How it has ended, for an element of an array: it has printed no others.
    end: str = ""


@dataclass(frozen=True)
class NewestLine:
    """The newest line of one of the elements that run."""

    part: JobId
    line: str


@dataclass
class _Output:
    """A file that a part of the job writes."""

    part: JobId
    tail: Tail
    is_error: bool

    def printed(self, lines: list[str]) -> Printed | None:
        return Printed(self.part, self.tail.path, lines, self.is_error) if lines else None


def _has_begun(part: Job) -> bool:
    """True if what is in its files may be its own, and not that of earlier jobs, or of the run before a requeue."""
    waits = part.state.is_pending or part.state.is_configuring
    return not waits and bool(part.nodelist or part.exit_code.code or not part.has_failed)


@dataclass(eq=False)
class JobRun:
    """Submits a job exactly once, and follows it to its end.

    ``keys`` are the keys of the earlier tries, and last that of this one. A try continues with the job of an earlier
    one unless that has failed by now. Jobs with keys in ``replaced`` are cancelled: their task was cleared, and the
    process that should have cancelled them may have died. With a ``log`` a submission and a cancellation wait while the
    cluster is away. To ``gather``, the jobs of mapped tasks wait a moment for others. ``tell_of_nodes`` returns lines
    about the nodes of a failed job, for what Slurm does not know.
    """

    client: AsyncSlurmClient
    job: BatchJob
    keys: Sequence[SubmissionKey]
    _: KW_ONLY
    replaced: Sequence[SubmissionKey] = ()
    since: datetime | None = None
    poll_interval: float = POLL_INTERVAL
    show_output: bool = True
    log: Logger | None = None
    gather: bool = False
    tell_of_nodes: Callable[[Sequence[str]], Awaitable[list[str]]] | None = None

    def __post_init__(self) -> None:
        self._outputs: dict[str, _Output] = {}
        #: The bytes that were in files before the job began, which may be those of earlier jobs.
        self._before: dict[str, int] = {}
        #: Set when there is new output.
        self._heard = asyncio.Event()
        #: Elements of an array whose end was seen, and when progress was last reported.
        self._over: set[JobId] = set()
        self._reported = -math.inf
        self._submission: asyncio.Future[Submitted] | None = None
        self._is_taken_back = False
        #: The job that was submitted or adopted.
        self.submitted: Submitted | None = None
        #: Jobs of replaced tries that were cancelled, and those of this one.
        self.ended: tuple[JobId, ...] = ()
        self.cancelled: tuple[JobId, ...] = ()
        #: The number of elements whose output is shown, by whether they have failed, and of those whose is not.
        self._shown = {True: 0, False: 0}
        self._unshown = 0

    @property
    def _patient(self) -> AsyncSlurmClient:
        return self.client.patient(self.log) if self.log else self.client

    async def read_lines(self) -> None:
        """Learn from a script on the cluster what its #SBATCH lines ask for."""
        self.job = await self._patient.with_lines(self.job)

    async def is_submitted(self) -> bool:
        """True if this try, or an earlier one, has submitted a job that has not failed."""
        return await self._patient.find(self.job, self.keys, since=self.since) is not None

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
        if clusters := asked_for(self.job).clusters:
            here = (await self._patient.config()).cluster
            if {*as_words(clusters)} != {here}:
                why = f"it would not be found again, as the connection is to {here}: name a connection to its cluster"
                raise InvalidJob([f"clusters: {why}"])
        self.ended = await self._patient.cancel_keys(self.replaced)
        *earlier, own = self.keys
        if earlier:
            adopted = await self._patient.find(self.job, earlier, since=self.since, own=own)
            if adopted:
                return adopted
        if self._fixed:
            with contextlib.suppress(ClusterError):
                folder = await self.client.ask_shared(JobFolder(), self.poll_interval)
                await self._look_before(Job(id=JobId(0), workdir=str(folder / (asked_for(self.job).chdir or ""))))
        submitted = await self._patient.submit(self.job, own, since=self.since, gather=self.gather)
        if submitted.adopted:
            # It may have begun before that.
            self._before.clear()
        return submitted

    @property
    def _fixed(self) -> list[str]:
        """The names of files that other jobs may write to, too."""
        names = (self.job.output, self.job.error) if self.show_output else ()
        return [name for name in names if name and not letters_of(name) & _OF_JOB]

    async def _look_before(self, part: Job) -> None:
        """Learn the sizes of files before the job begins."""
        for path in (expand_filename(name, part) for name in self._fixed):
            if path:
                self._before[path] = await self.client.size(path)

    async def cancel(self) -> None:
        """Cancel the job, even while its submission is under way, here or in a process that this one took over from.

        And those of replaced tries: whoever was told to end these may have left them to this one.
        """
        is_under_way = self._take_back()
        self.cancelled = await self._patient.cancel_keys((*self.replaced, *self.keys))
        if is_under_way and self._submission:
            # What was under way has its answer then, and where nothing could withdraw it there is a job now.
            await asyncio.wait([self._submission])
            self.cancelled += await self._patient.cancel_keys(self.keys)

    async def hindrances(self, status: JobStatus) -> list[str]:
        """Lines about nodes that the job asks for by name and cannot get, as Slurm's reason names none."""
        if not (named := asked_for(self.job).nodelist):
            return []
        # Many jobs may wait for the same nodes.
        ask = partial(self.client.ask_shared, max_age=self.poll_interval)
        with contextlib.suppress(ClusterError, ValueError):
            return await run_steps_async(hindrances(status.parts, ",".join(as_words(named))), ask)
        return []

    async def diagnosis(self, status: JobStatus) -> list[str]:
        """Lines of the diagnosis of a job that did not succeed."""
        try:
            async with timeout(DIAGNOSIS_TIME):
                lines, nodes = await run_steps_async(diagnose(status), self.client.ask)
        except asyncio.TimeoutError:
            return [f"No diagnosis: the cluster did not answer within {DIAGNOSIS_TIME:g} s"]
        told = await self.tell_of_nodes(nodes) if nodes and self.tell_of_nodes else []
        return lines + (["  Kubernetes", *(f"    {line}" for line in told)] if told else [])

    async def follow(self) -> AsyncIterator[JobStatus | Printed | NewestLine]:
        """States and output as they come; the last item is the job's end, after all of its output.

        The output of an element of an array comes as a whole, at its end; until then a newest line comes now and then.
        """
        submitted = self.submitted or await self.submit()
        assert submitted.id is not None
        assert submitted.key is not None
        watch = self.client.watch(
            submitted.id,
            name=submitted.key.suffix_of(submitted.id),
            mine=True,
            poll_interval=self.poll_interval,
            indices=indices_asked_for(self.job),
        )
        news = asyncio.ensure_future(watch.next())
        heard = asyncio.ensure_future(self._heard.wait())
        status: JobStatus | None = None
        try:
            while status is None or not status.is_over:
                waiting: list[asyncio.Future[Any]] = [news, heard]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if heard.done():
                    self._heard.clear()
                    heard = asyncio.ensure_future(self._heard.wait())
                    for output in self._outputs.values():
                        if (printed := output.printed(output.tail.lines())) and (news_of := self._news_of(printed)):
                            yield news_of
                if news.done():
                    status = news.result()
                    assert status is not None, "only this run closes the watch"
                    if not status.is_over:
                        yield status
                        await self._patient.complete_submission(status, self.job, submitted.key, since=self.since)
                        async for printed in self._ended(status):
                            yield printed
                    await self._follow_outputs(status)
                    news = asyncio.ensure_future(watch.next())
        finally:
            watch.close()
            news.cancel()
            heard.cancel()
            for output in self._outputs.values():
                output.tail.close()
        async for printed in self._ended(status) if status.is_array else self._rest():
            yield printed
        if self._unshown:
            lines = [f"(The output of {self._unshown} more elements is not shown; read it on the cluster)"]
            yield Printed(submitted.id, "", lines)
        # Before 24.05 accounting does not keep the path of the output, but the job names it.
        parts = tuple(replace(part, stdout=part.stdout or self.job.output or "") for part in status.parts)
        yield await self.client.accounts.complete(replace(status, parts=parts))

    async def _follow_outputs(self, status: JobStatus) -> None:
        if not self.show_output:
            return
        parts = [part for part in status.parts if _has_begun(part)]
        if status.is_array:
            # One that runs stands for all.
            parts = [part for part in parts if part.state.is_active][:1]
            if any(output.part not in self._over for output in self._outputs.values()):
                return
        elif not parts and not self._outputs:
            # Others may have written since.
            with contextlib.suppress(ClusterError):
                for part in status.parts:
                    await self._look_before(part)
        for part in parts:
            for path, is_error in self._paths(part):
                before = self._before.get(path, 0)
                # While it completes, the run before may still write.
                runs = part.state.base is JobBase.RUNNING or part.state.is_finished or not part.restarts
                begins_anew = (part.restarts or before) and runs and not await self._appends()
                if path not in self._outputs:
                    self._outputs[path] = _Output(part.id, self.client.tail(path, self._heard, before), is_error)
                tail = self._outputs[path].tail
                tail.has_run |= part.state.base in _RUN and not part.exit_code.is_not_started
                if begins_anew:
                    tail.requeued(part.restarts)

    async def _appends(self) -> bool:
        """True if a requeued job keeps what it has printed before."""
        if mode := asked_for(self.job).open_mode:
            return mode.lower().startswith("a")
        with contextlib.suppress(ClusterError):
            return (await self.client.config()).settings.get("JobFileAppend") in ("1", "True")
        return False

    def _news_of(self, printed: Printed) -> Printed | NewestLine | None:
        """The lines themselves, or for an array the progress, at most once in each interval."""
        # It is the job itself, perhaps an element of an array of others.
        if printed.part.element is None or self.submitted is None or printed.part == self.submitted.id:
            return printed
        if printed.part in self._over or time.monotonic() - self._reported < self.poll_interval:
            return None
        self._reported = time.monotonic()
        return NewestLine(printed.part, printed.lines[-1])

    async def _ended(self, status: JobStatus) -> AsyncIterator[Printed]:
        """The output of elements that have ended since the last status, of failed ones first.

        A file that all of them write to is shown once they have ended, as that of the job.
        """
        # Those that were requeued after their end run, and end, once more.
        self._over -= {part.id for part in status.parts if not part.state.is_finished}
        ended = [part for part in status.parts if part.state.is_finished and part.id not in self._over]
        if not status.is_array or not (ended or status.is_over):
            return
        self._over |= {part.id for part in ended}
        for output in self._outputs.values():
            if output.part in self._over:
                output.tail.close()
        chosen: list[tuple[Job, str, bool]] = []
        for part in sorted(filter(_has_begun, ended), key=lambda part: not part.has_failed):
            own = [one for one in self._paths(part) if not self._is_shared(one[1])]
            self._shown[part.has_failed] += bool(own)
            if own and self._shown[part.has_failed] > MOST_SHOWN:
                self._unshown += self.show_output
            elif self.show_output:
                chosen += [(part, *one) for one in own]
        if status.is_over and self.show_output and (begun := next(filter(_has_begun, status.parts), None)):
            chosen += [(begun, *one) for one in self._paths(begun) if self._is_shared(one[1])]
        try:
            ends = await self._ends([path for _, path, _ in chosen], MOST_OF_ELEMENT)
        except ClusterError as error:
            # Missing output does not change how the job ended.
            self.show_output &= not isinstance(error, NotSupported)
            yield Printed(status.id, "", [f"(The output of {len(chosen)} elements is not shown: {error})"])
            return
        for (part, path, is_error), lines in zip(chosen, ends, strict=True):
            if lines and self._is_shared(is_error):
                yield Printed(status.id, path, [f"(All elements write to {path})", *lines], is_error)
            elif lines:
                yield Printed(part.id, path, lines, is_error, state_of(part))

    def _is_shared(self, is_error: bool) -> bool:
        """True if all elements of an array write to the same file."""
        name = self.job.error if is_error else self.job.output
        return bool(name) and letters_of(name or "").isdisjoint(OF_ELEMENTS)

    async def _ends(self, paths: Sequence[str], most: int) -> list[list[str]]:
        """The last lines of files, each up to so many bytes, without what was there before the job began."""
        if not paths:
            return []
        answers = await self.client.ask(ReadPieces(tuple(Piece(path, -most, most) for path in paths)))
        found = []
        for path, read in zip(paths, answers, strict=True):
            start = self._outputs[path].tail.start if path in self._outputs else 0
            begin, console = max(0, (read.size or 0) - most), Console()
            lines = console.feed(read.data[max(0, start - begin) :]) + console.end()
            before = begin - start
            note = f"(Not shown of {path}: the {before} bytes before this)"
            # The first of them is cut.
            found.append([note, *lines[1:]] if before > 0 else lines)
        return found

    async def last_lines(self, status: JobStatus) -> list[str]:
        """The last lines of the output of a failed job, or of its first failed part, under a heading."""
        error = failure(status)
        if error is None or error.part is None or not _has_begun(error.part):
            return []
        # Separate errors say more.
        for path, _ in reversed(self._paths(error.part)):
            with contextlib.suppress(ClusterError, asyncio.TimeoutError):
                async with timeout(DIAGNOSIS_TIME):
                    [lines] = await self._ends([path], MOST_OF_END)
                if lines := [line for line in lines if line.strip()][-LAST_LINES:]:
                    return [f"The end of {path}:", *(f"  {line}" for line in lines)]
        return []

    def place(self, part: Job) -> str:
        """The path of the output of a job, or the pattern of the paths of its parts; empty if it is not known yet."""
        pattern = part.stdout or self.job.output or ""
        whole = str(PurePosixPath(part.workdir, pattern)) if pattern else ""
        if self.submitted is None or part.id != self.submitted.id:
            return whole
        # An element gets the number that is in its path when it starts.
        return expand_filename(pattern, part) or ("" if part.id.element is not None else whole)

    def _paths(self, part: Job) -> list[tuple[str, bool]]:
        """Its files as far as they are known, and whether they are for errors."""
        output = expand_filename(part.stdout or self.job.output or "", part)
        error = expand_filename(self.job.error or "", part)
        return [(output, False)] * bool(output) + [(error, True)] * bool(error and error != output)

    async def _rest(self) -> AsyncIterator[Printed]:
        for output in self._outputs.values():
            if printed := output.printed(await output.tail.rest(MOST_AT_THE_END)):
                yield printed
