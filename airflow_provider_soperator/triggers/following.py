"""A job's way through Slurm, told in the log of its task."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_provider_soperator.clients.run import JobRun, Printed
from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.requests.once import Submitted
from airflow_provider_soperator.slurm.status import JobStatus

#: Parts of a job that are told of one by one; of more it is said how many are in which state.
_MOST_TOLD = 8


class Logger(Protocol):
    """What is needed of a logger."""

    def info(self, event: str, *args: Any) -> Any: ...


async def follow(run: JobRun, log: Logger) -> JobStatus:
    """Submit and wait, and log what happens and what is printed; the job's end."""
    submitted = await run.submit()
    log.info("%s", _begin(submitted))
    status: JobStatus | None = None
    async for news in run.follow():
        if isinstance(news, Printed):
            _print(news, log)
        else:
            status = news
            log.info("Job %s %s", status.id, describe(status))
    assert status is not None, "the last news is the end"
    return status


def _begin(submitted: Submitted) -> str:
    if submitted.adopted:
        return f"Job {submitted.id} was submitted by an earlier try: going on with it"
    return f"Job {submitted.id} submitted"


def describe(status: JobStatus) -> str:
    """Where a job stands, in a sentence without its subject."""
    if status.lost:
        return f"is lost: {status.lost}"
    if status.trouble:
        return f"cannot be asked for at present, which does it no harm: {status.trouble}"
    if len(status.parts) > _MOST_TOLD:
        counts: dict[str, int] = {}
        for part in status.parts:
            state = str(part.state)
            counts[state] = counts.get(state, 0) + max(1, sum(1 for _ in part.id.indices()))
        return "is " + ", ".join(f"{count} {state}" for state, count in counts.items())
    said = [_one(part) for part in status.parts]
    if len(said) == 1:
        return f"is {said[0]}"
    return "is " + ", ".join(f"{part.id} {one}" for part, one in zip(status.parts, said, strict=True))


def _one(part: Job) -> str:
    said = str(part.state)
    if part.state.is_pending and part.reason:
        said += f" ({part.reason})"
    if part.nodelist:
        said += f" on {part.nodelist}"
    if part.restarts:
        said += f", requeued {part.restarts} times" if part.restarts > 1 else ", requeued once"
    if part.state.is_finished and part.started and part.ends:
        said += f" after {part.ends - part.started}"
    return said


def _print(printed: Printed, log: Logger) -> None:
    # The marks make a group that Airflow's page folds.
    grouped = printed.part.element is not None or printed.part.part is not None
    if grouped:
        log.info("::group::%s", printed.part)
    prefix = "stderr: " if printed.is_error else ""
    for line in printed.lines:
        log.info("%s%s", prefix, line)
    if grouped:
        log.info("::endgroup::")
