"""Submit jobs exactly once: whatever breaks, and whoever tries at the same time, each key has one job.

On the cluster it is one program: under a lock it asks queue and accounting for the keys, submits what is not there, and
asks again. It does not end with the connection, so a submission that was cut off is completed, and the next try, which
waits for the lock, finds it.

Jobs can be submitted together, so that all are there or none. Those that wait for no other of them are held until all
are accepted, with a comment that says so. It is how the next try knows them from jobs that their user has held: after a
success nothing is released any more. If one is refused, the others are held, lose their keys, and are cancelled.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_soperator.slurm import kinds, payload, waits
from airflow_provider_soperator.slurm.errors import (
    InvalidRequest,
    SlurmError,
    UnreadableAnswer,
    from_output,
    passing,
)
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.keys import MARK, SubmissionKey, key_of
from airflow_provider_soperator.slurm.requests.accounting import Accounting
from airflow_provider_soperator.slurm.requests.base import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.requests.jobs import GONE

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job import BatchJob

#: Jobs in one go; a site's rate limit, and a worker that wants to be told of progress, ask for no more.
MOST = 500

#: How far back accounting is searched unless the caller knows better.
LOOK_BACK = timedelta(days=7)

#: The comment of a job that is held until all that belongs to its submission is there; then it gets its own.
HELD = "airflow-provider-soperator: held until its submission is complete"
#: An option in the place of which the program puts what the job waits for, once ids are known.
PLACEHOLDER = "singleton"
#: What the name of a job that was refused together with others ends in, in place of its key.
WITHDRAWN = ".withdrawn"


@cache
def _program() -> str:
    """What is run on the cluster."""
    return Path(__file__).with_name("submit_once.bash").read_text()


def unknown_key(key: SubmissionKey | str) -> str:
    """Why a job is refused that waits for one that is not there."""
    return f"no job of this user in the queue, and none submitted with this one, has the key {key} of --dependency"


class Together(Enum):
    """What becomes of jobs that are submitted together."""

    #: None starts before all are accepted.
    START = "start"
    #: None starts yet, as more belongs to them: they are to be asked for once more, with ``START``.
    WAIT = "wait"
    #: Nothing is submitted, and what is there is cancelled, as something that belongs to it was refused.
    END = "end"


@dataclass(frozen=True)
class Submitted:
    """What has become of one job: its id, or why it was refused.

    ``adopted`` says that a job with this key was there already.
    """

    id: JobId | None
    adopted: bool = False
    error: SlurmError | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitOnce(Request[tuple[Submitted, ...]]):
    """Submit jobs whose names end in a key, but for those that are there already. One answer for each, in order.

    A refusal of one does not keep the others from being submitted, unless they are submitted together. An exception
    means that nothing is known: ask again. What a job waits for can be named by a key, or be ``singleton``: see
    ``Dependency``.
    """

    jobs: tuple[BatchJob, ...]
    #: When the first try of any of these keys can have been at the earliest.
    since: datetime | None = None
    #: There cannot have been an earlier try, so accounting is not asked.
    fresh: bool = False
    #: All of them or none: the refusal of one cancels the others, also those that were there already.
    together: Together | None = None
    mark: str = field(default_factory=lambda: f"~{secrets.token_hex(8)}", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.jobs) <= MOST:
            raise InvalidRequest(f"{len(self.jobs)} jobs are to be submitted at once; 1 to {MOST} can be")
        keys = self.submission_keys()
        if len(set(keys)) < len(keys):
            raise InvalidRequest("two of these jobs have the same key, so only one could ever be submitted")

    def submission_keys(self) -> tuple[SubmissionKey, ...]:
        keys = [key_of(job.name or "") for job in self.jobs]
        if None in keys:
            raise InvalidRequest(f"the name of a job to submit once must end in {MARK!r} and a key")
        return tuple(key for key in keys if key)

    def again(self) -> SubmitOnce:
        """What makes it once: the next try finds what the first has done."""
        return replace(self, fresh=False)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The places of the jobs in the order in which they are submitted: each after those that it waits for."""
        return waits.in_order(self.jobs)

    def is_held(self, job: BatchJob) -> bool:
        """Whether a job, submitted together with others, could start at once but for being held."""
        if not self.together:
            return False
        return not waits.asked_for(job).hold and self._keys.isdisjoint(waits.waits_of(job).keys)

    def command(self) -> Command:
        return Command(("bash", "-c", _program(), "sbatch"), stdin=b"\0".join(self._fields()) + b"\0")

    def read(self, answer: CommandOutput) -> tuple[Submitted, ...]:
        if answer.status:
            raise from_output(("sbatch",), answer.status, answer.stdout, answer.stderr)
        found = dict(self._outcome(line) for line in answer.text.splitlines())
        refused = {place: one for place, one in found.items() if one.error}
        if self.together is Together.END or (self.together and refused):
            found = dict.fromkeys(range(len(self.jobs)), Submitted(None)) | refused
        if found.keys() != set(range(len(self.jobs))):
            raise UnreadableAnswer(f"{len(found)} answers for {len(self.jobs)} jobs", "sbatch")
        return tuple(found[place] for place in range(len(self.jobs)))

    @cached_property
    def _keys(self) -> frozenset[SubmissionKey]:
        return frozenset(self.submission_keys())

    def _fields(self) -> Iterator[bytes]:
        since = self.since or datetime.now(timezone.utc) - LOOK_BACK
        past = Accounting(names=tuple(job.name or "" for job in self.jobs), since=since).selection()
        together = self.together.value if self.together else ""
        words = (HELD, WITHDRAWN, unknown_key(self.mark), passing(), GONE.pattern)
        for text in (self.mark, _yes(self.fresh), together, *words, *_counted(past), str(len(self.jobs))):
            yield text.encode()
        keys = self.submission_keys()
        for place in self.order:
            yield from self._job_fields(self.jobs[place], keys[place])

    def _job_fields(self, job: BatchJob, key: SubmissionKey) -> Iterator[bytes]:
        waits_for, asked = waits.waits_of(job), waits.asked_for(job)
        priority = "" if asked.priority is None else kinds.PRIORITY.write(asked.priority)
        comments = [part.comment or "" for part in payload.components(job)] if self.together else []
        if self.is_held(job):
            # Released, a job gets the priority that Slurm works out, so its own is set afterwards.
            job = waits.with_extra_args(job).replace(hold=True, comment=HELD, priority=None)
        if not waits_for.is_plain:
            job = waits.with_extra_args(job).replace(dependency=PLACEHOLDER)
        submission = job.submission()
        place = "" if waits_for.is_plain else str(submission.argv.index(f"--dependency={PLACEHOLDER}"))
        plain = b"\0" not in submission.stdin
        for text in (
            *(key.text, waits.readable(job)),
            *(_yes(waits_for.is_singleton), waits_for.rest, " ".join(map(str, waits_for.keys)), place),
            *(priority, *_counted(comments)),
            *(*_counted(submission.argv), "text" if plain else "base64"),
        ):
            yield text.encode()
        yield submission.stdin if plain else base64.b64encode(submission.stdin)

    def _outcome(self, line: str) -> tuple[int, Submitted]:
        number, kind, rest = line.split(" ", 2)
        place = self.order[int(number)]
        if kind == "failed":
            status, _, said = rest.partition(" ")
            return place, Submitted(None, error=from_output(("sbatch",), int(status), b"", base64.b64decode(said)))
        return place, Submitted(JobId.parse(rest), adopted=kind == "adopted")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _counted(texts: Sequence[str]) -> tuple[str, ...]:
    return (str(len(texts)), *texts)
