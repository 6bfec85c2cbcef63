"""What jobs wait for, changed while they wait: another job in the place of one, or nothing any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.clients.work import tried
from airflow_provider_soperator.slurm.errors import InvalidStateTransition, JobFinished, SlurmError, UnknownJob
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, UpdateJob, batches
from airflow_provider_soperator.slurm.unmet import Unmet


def relink(ids: Iterable[JobId], old: JobId, new: JobId) -> Steps[tuple[JobId, ...]]:
    """Let those of these jobs that wait for ``old`` wait for ``new`` in its place; the answer is which did."""
    return (yield from _change(ids, lambda unmet: unmet.relinked(old, new)))


def let_go(job: JobId) -> Steps[bool]:
    """Drop what a job waits for in vain, so that it runs; False if there is nothing of the kind."""
    return bool((yield from _change([job], lambda unmet: unmet.possible if unmet.is_vain else unmet)))


def cancel_waiting(ids: Iterable[JobId]) -> Steps[None]:
    """Cancel what has not started of these; elements of an array that run go on."""
    yield from tried(CancelJobs(ids=batch, waiting=True) for batch in batches(dict.fromkeys(ids)))


def _change(ids: Iterable[JobId], change: Callable[[Unmet], Unmet]) -> Steps[tuple[JobId, ...]]:
    """Change what each of these jobs waits for; the answer is those of which something was changed."""
    wanted = tuple(dict.fromkeys(ids))
    listed: tuple[Job, ...] = (yield ListJobs(ids=wanted)) if wanted else ()
    waiting: dict[JobId, list[Job]] = {}
    for job in listed:
        if job.state.is_pending:
            waiting.setdefault(job.id.whole, []).append(job)
    changed: dict[JobId, None] = {}
    failures: list[SlurmError] = []
    for whole, parts in waiting.items():
        for target, text in _updates(whole, parts, change):
            try:
                yield UpdateJob(target, {"Dependency": text})
            except (InvalidStateTransition, JobFinished, UnknownJob):
                # It has started meanwhile. Of an array this is said of elements that run, and the others are changed.
                if all(part.id.elements for part in parts):
                    changed[whole] = None
            except SlurmError as error:
                failures.append(error)
            else:
                changed[whole] = None
    if failures:
        raise failures[0]
    return tuple(changed)


def _updates(whole: JobId, parts: Iterable[Job], change: Callable[[Unmet], Unmet]) -> Iterator[tuple[JobId, str]]:
    """Which parts of a job have to wait for what, by the numbers under which they can be changed.

    Elements of an array that the queue has as one entry go by the number of the whole array, which changes all others
    that wait, too; these are then told what they are to wait for.
    """
    # The one entry, if there is one, comes first.
    text_of_all: str | None = None
    for part in sorted(parts, key=lambda part: not part.id.elements):
        unmet = Unmet.parse(part.dependency)
        changed = change(unmet)
        if changed != unmet or text_of_all not in (None, str(changed)):
            yield (whole if part.id.elements else JobId(part.raw_id)), str(changed)
        if part.id.elements and changed != unmet:
            text_of_all = str(changed)
