"""A job's way through Slurm, told in the log of its task."""

from __future__ import annotations

import asyncio

from airflow_provider_soperator.client.job_run import JobRun, Printed
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.job_records import JobStatus, sentence
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.triggers.chained import Chain
from airflow_provider_soperator.triggers.published import Published

#: Lines that make one event of the log. A triggerer passes some thousand events a second, for all of its triggers, and
#: one that is busy with them for half a minute is taken for dead.
_BLOCK = 100
#: Characters of a line that stand above a group of them.
_TITLE = 100


async def follow(run: JobRun, log: Logger, published: Published, chain: Chain) -> JobStatus:
    """Submit and wait, and tell of what happens and what is printed; the job's end."""
    submitted = await run.submit()
    assert submitted.id is not None
    for job in run.ended:
        log.info("Job %s of an earlier try was still there: cancelled, as the task has been cleared since", job)
    log.info("%s", _begin(submitted, chain))
    await chain.relink(run.client, submitted.id, run.earlier, log)
    await published.begin(submitted.id)
    status: JobStatus | None = None
    freeing: asyncio.Future[None] | None = None
    try:
        async for news in run.follow():
            if isinstance(news, Printed):
                await _print(news, log)
                continue
            status = news
            log.info("Job %s %s", status.id, sentence(status))
            await published.update(status)
            if freeing is None and chain.is_stuck(status):
                freeing = asyncio.ensure_future(chain.free(run.client, submitted.id, published.ti, log))
    finally:
        if freeing:
            freeing.cancel()
    assert status is not None, "the last news is the end"
    if not status.succeeded:
        for line in await run.diagnosis(status):
            log.info("%s", line)
    return status


def _begin(submitted: Submitted, chain: Chain) -> str:
    if str(submitted.id) == chain.ahead:
        return f"Job {submitted.id} was submitted ahead"
    if submitted.adopted:
        return f"Job {submitted.id} was submitted by an earlier try: going on with it"
    return f"Job {submitted.id} submitted"


async def _print(printed: Printed, log: Logger) -> None:
    prefix = "stderr: " if printed.is_error else ""
    lines = [prefix + line for line in printed.lines]
    if printed.part == printed.part.whole:
        await _log(lines, log)
    elif len(lines) == 1:
        log.info("%s: %s", printed.part, lines[0])
    else:
        # The marks make a group that Airflow's page folds. Folded, too, it tells how far this part has come.
        log.info("::group::%s: %s", printed.part, lines[-1][:_TITLE])
        await _log(lines, log)
        log.info("::endgroup::")


async def _log(lines: list[str], log: Logger) -> None:
    size = _BLOCK if len(lines) > _BLOCK else 1
    for start in range(0, len(lines), size):
        log.info("%s", "\n".join(lines[start : start + size]))
        if size > 1:
            # Others want their turn.
            await asyncio.sleep(0)
