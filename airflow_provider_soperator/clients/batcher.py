"""Jobs that many tasks submit at the same moment, as a wide fan-out does, go to the cluster together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests.once import SubmitOnce, Submitted

#: Seconds that the first waits for others.
PAUSE = 0.05


class SubmitMany(Protocol):
    """Submits jobs, each exactly once."""

    async def __call__(
        self, jobs: Sequence[BatchJob], *, since: datetime | None = None, fresh: bool = False
    ) -> tuple[Submitted, ...]: ...


@dataclass
class _Waiting:
    """A job, and all who wait for it to be submitted."""

    job: BatchJob
    since: datetime | None
    fresh: bool
    answers: list[asyncio.Future[Submitted]] = field(default_factory=list)


class Batcher:
    """Collects what is to be submitted, and hands each its own answer."""

    def __init__(self, submit_many: SubmitMany) -> None:
        self._submit_many = submit_many
        self._waiting: dict[str, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None

    async def submit(self, job: BatchJob, *, since: datetime | None, fresh: bool) -> Submitted:
        # What is wrong with one job must not keep the others from being submitted.
        job.check()
        [key] = SubmitOnce(jobs=(job,)).submission_keys()
        answer: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key.text, _Waiting(job, since, fresh)).answers.append(answer)
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="slurm-submit")
        return await answer

    async def _send(self) -> None:
        await asyncio.sleep(PAUSE)
        batch, self._waiting, self._task = list(self._waiting.values()), {}, None
        earliest = None if any(one.since is None for one in batch) else min(one.since for one in batch if one.since)
        try:
            submitted = await self._submit_many(
                [one.job for one in batch], since=earliest, fresh=all(one.fresh for one in batch)
            )
        except BaseException as error:
            for answer in (answer for one in batch for answer in one.answers if not answer.done()):
                answer.set_exception(error)
            return
        for one, result in zip(batch, submitted, strict=True):
            for answer in one.answers:
                if not answer.done():
                    answer.set_result(result)
