"""The queue of a picture as rows, in the order of what runs and what comes next; and what a job has printed last."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict

from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.board.wall import nodes_of
from airflow_provider_soperator.client.output import Console
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.files import FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests import WhoAmI
from airflow_provider_soperator.slurm.submission_keys import strip_key

#: Rows on a page, and reasons above them.
ROWS, _REASONS = 100, 4
#: Bytes that are read of the end of a file, and lines that are shown.
_BYTES, _LINES = 32 << 10, 200
#: Seconds for which viewers share what was read, and who the user of a connection is.
_MAX_AGE, _OF_USER = 5.0, 600.0


class QueueQuery(BaseModel):
    """What a viewer asks the queue for, as the address of the page has it."""

    model_config = ConfigDict(extra="ignore")

    jobs: Literal["active", "running", "pending", "ended"] = "active"
    #: A part of the id, name, task, user, account or partition.
    search: str = ""
    on_node: str = ""
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A job in the queue, and the task that waits for it."""

    job: Job
    tasks: JobTasks | None

    @property
    def why(self) -> str:
        """Why it waits."""
        return reason_in_words(self.job)

    @property
    def gpus(self) -> int:
        """The GPUs of all that share the row, as pending elements of an array do."""
        return self.job.gpus * self.job.count

    @property
    def name(self) -> str:
        return strip_key(self.job.name)

    @property
    def since(self) -> datetime | None:
        return self.job.submitted if self.job.state.is_pending else self.job.started

    @property
    def progress(self) -> int | None:
        """How much of its limit a running job has used, in percent."""
        used, limit = self.job.time_used, self.job.time_limit
        if not self.job.state.is_active or not isinstance(used, timedelta) or not isinstance(limit, timedelta):
            return None
        return min(100, round(100 * used / limit)) if limit else None

    @property
    def has_output(self) -> bool:
        """True if a viewer may ask for what it has printed, which is as private as its task's log."""
        return self.tasks is not None and bool(self.job.stdout) and not self.job.state.is_pending

    @property
    def words(self) -> str:
        """All that a search looks through."""
        job, task = self.job, f"{self.tasks.dag_id} {self.tasks.run_id} {self.tasks}" if self.tasks else ""
        return f"{job.id} {job.name} {task} {job.user} {job.account} {job.partition} {job.state} {job.reason}".lower()


@dataclass(frozen=True, kw_only=True)
class QueuePage:
    """A page of the queue, with the numbers of all of it."""

    rows: tuple[QueueRow, ...]
    #: Rows that fit, and how many of them are before these.
    total: int
    first: int
    running: int
    pending: int
    gpus_running: int
    gpus_pending: int
    #: The most frequent reasons of pending jobs, each in words, with how many there are.
    reasons: tuple[tuple[str, str, int], ...] = ()


def queue_page(picture: Picture, query: QueueQuery, at_most: int = ROWS) -> QueuePage:
    """The rows that fit a query: running jobs first, then pending ones by priority, then those that have ended."""
    rows = [QueueRow(job=job, tasks=picture.tasks.get(job.id)) for job in picture.jobs]
    running = [row for row in rows if row.job.state.is_active]
    pending = [row for row in rows if row.job.state.is_pending]
    reasons, waiting = Counter[str](), dict[str, Job]()
    for row in pending:
        reason = row.job.reasons[0]
        reasons[reason] += row.job.count
        waiting[reason] = replace(row.job, reason=reason)
    fitting = [row for row in rows if _fits(row, query)]
    fitting.sort(key=_order)
    # The queue may have become shorter since the page was chosen.
    first = max(0, min(query.first, (len(fitting) - 1) // at_most * at_most))
    return QueuePage(
        rows=tuple(fitting[first : first + at_most]),
        total=len(fitting),
        first=first,
        running=sum(row.job.count for row in running),
        pending=sum(row.job.count for row in pending),
        gpus_running=sum(row.gpus for row in running),
        gpus_pending=sum(row.gpus for row in pending),
        reasons=tuple(
            (reason, reason_in_words(waiting[reason]), number)
            for reason, number in reasons.most_common(_REASONS)
            if reason
        ),
    )


def row_of(picture: Picture, job: JobId) -> QueueRow:
    """The row of one job of the picture."""
    return next(QueueRow(job=one, tasks=picture.tasks.get(job)) for one in picture.jobs if one.id == job)


def _fits(row: QueueRow, query: QueueQuery) -> bool:
    state = row.job.state
    wanted = {
        "active": not state.is_finished,
        "running": state.is_active,
        "pending": state.is_pending,
        "ended": state.is_finished,
    }[query.jobs]
    on_node = not query.on_node or query.on_node in nodes_of(row.job)
    return wanted and on_node and all(word in row.words for word in query.search.lower().split())


def _order(row: QueueRow) -> tuple[int, int, object]:
    job = row.job
    if job.state.is_active:
        return (0, 0, job.id)
    return (1 if job.state.is_pending else 2, -(job.priority or 0), job.id)


async def output_tail(connection: str, job: Job) -> str:
    """The last lines of what a job has printed; raises ``ClusterError`` if they cannot be read.

    Others can give their jobs any name, also with the key of a task, and let their output be a link to any file.
    """
    path = job.output
    if not path:
        raise FileError("it is not known yet which file the job writes")
    async with SlurmHook(connection).async_client() as client:
        user = await client.ask_shared(WhoAmI(), _OF_USER)
        if job.user != user:
            raise FileError(f"it is a job of {job.user}: the connection {connection} reads those of {user}")
        [end] = await client.ask_shared(ReadPieces((Piece(path, -_BYTES, _BYTES),)), _MAX_AGE)
    if end.size is None:
        raise FileError("the job has written no output yet")
    console = Console()
    lines = [*console.feed(end.data), *console.end()]
    # The first one is cut.
    return "\n".join(lines[1 if end.size > _BYTES and len(lines) > 1 else 0 :][-_LINES:])
