"""Submission of jobs exactly once, across failures and concurrent tries.

One program on the cluster looks up the keys in queue and accounting under a lock, submits the missing jobs, and looks
again. It survives the connection, so an interrupted submission is completed, and the next try, which waits for the
lock, finds it.

Equal jobs of mapped tasks go as one array; each of its elements has a key of its own. Where a limit refuses so many,
as many are submitted as there is room for.

Jobs can be submitted together, all or none. Those that depend on no other of them are held until all are accepted,
with a comment that says so, by which the next try tells them from jobs that their user has held: after a success
nothing more is released. If one is rejected, the others are held, lose their keys, and are cancelled.

A submission can be withdrawn by a file that is named by its key, which also reaches programs that wait for the lock.

A dependency may name other jobs by their submission keys. Slurm knows neither keys nor names without them, so they are
replaced by ids at the last moment.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from airflow_provider_soperator.slurm import dependencies, errors, job_description, packs, sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import JobDescription
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests.accounting import Accounting
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT, Command, CommandOutput, Order, Request
from airflow_provider_soperator.slurm.requests.jobs import GONE
from airflow_provider_soperator.slurm.submission_keys import MARK, SubmissionKey, key_of, strip_key

#: Jobs in one request: rate limits and reports of progress ask for no more.
MOST = 500

#: Seconds to wait for the lock, beside the time limit of the work.
LOCK_WAIT = 120
#: The program's exit status without it.
_NO_LOCK = 75
#: Seconds of work after which the other jobs are left to the next request, as others wait for the lock and the answer.
WORK_TIME = 60

#: Minutes for which a withdrawal is kept at least: no program lives longer.
KEPT = 60

#: How far back accounting is searched by default.
LOOK_BACK = timedelta(days=7)

#: The comment of a job that is held until its joint submission is complete; then it gets its own.
HELD = "airflow-provider-soperator: held until its submission is complete"
#: A dependency that the program replaces by the real one, once ids are known.
PLACEHOLDER = "singleton"
#: Replaces the key in the names of jobs that were rejected together.
WITHDRAWN = ".withdrawn"


@cache
def _program(name: str) -> str:
    return "".join(Path(__file__).with_name(f"{part}.bash").read_text() for part in ("keyed_jobs", name))


def unknown_key(key: SubmissionKey | str) -> str:
    """The error for a dependency on a missing job."""
    return f"--dependency: no job of this user in the queue or in this submission has the key {key}"


class Together(Enum):
    """Handling of jobs that are submitted together."""

    #: None starts before all are accepted.
    START = "start"
    #: None starts yet, as more jobs follow: a request with ``START`` must follow.
    WAIT = "wait"
    #: Nothing is submitted, and existing jobs are cancelled, as another one was rejected.
    END = "end"


@dataclass(frozen=True)
class Submitted:
    """The outcome for one job: its id, or the error.

    ``adopted``: a job with this key existed already. ``key``: of a job that was submitted or found on its own.
    """

    id: JobId | None
    adopted: bool = False
    error: errors.SlurmError | None = None
    key: SubmissionKey | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class SubmitOnce(Request[tuple[Submitted, ...]]):
    """Submit jobs whose names end in a key, except those that exist already. One answer for each, in order.

    If one is rejected, the others are submitted nevertheless, unless they are submitted together. ``NotReached`` is the
    answer for jobs that a slow cluster leaves for the next request. After an exception the outcome is unknown: repeat
    the request. Dependencies can name keys, and be ``singleton``: see ``Dependency``.
    """

    jobs: tuple[BatchJob, ...]
    #: The earliest possible time of the first try of any of these keys.
    since: datetime | None = None
    #: True if there was no earlier try, so that accounting need not be asked.
    fresh: bool = False
    #: All or none: if one is rejected, the others are cancelled, even those that existed already.
    together: Together | None = None
    #: What the jobs have in common with others, if that is known already; None for a job that goes on its own.
    packables: tuple[packs.Packable | None, ...] | None = field(default=None, compare=False, repr=False)
    mark: str = field(default_factory=lambda: f"~{secrets.token_hex(8)}", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise errors.InvalidRequest("a submission has at least one job")
        keys = self.submission_keys()
        if len(set(keys)) < len(keys):
            raise errors.InvalidRequest("two of these jobs have the same key, so only one could be submitted")

    def submission_keys(self) -> tuple[SubmissionKey, ...]:
        keys = [key_of(job.name or "") for job in self.jobs]
        if None in keys:
            raise errors.InvalidRequest(f"the name of a job to submit once must end in {MARK!r} and a key")
        return tuple(key for key in keys if key)

    def again(self) -> SubmitOnce:
        """Repeatable: the next try finds the jobs of the first."""
        return replace(self, fresh=False)

    @cached_property
    def calls(self) -> tuple[packs.Pack, ...]:
        """What sbatch is called for, in the order of submission."""
        packables = map(packs.packable_of, self.jobs) if self.packables is None else self.packables
        made = [] if self.together else packs.packs(packables)
        in_array = {place for pack in made for place in pack.places.values()}
        keys = self.submission_keys()
        alone = [place for place in range(len(self.jobs)) if place not in in_array]
        order = [alone[at] for at in in_order([self.jobs[place] for place in alone])]
        return (*made, *(packs.Pack(self.jobs[place], keys[place], {None: place}) for place in order))

    def command(self) -> Command:
        stdin = b"\0".join(self._fields()) + b"\0"
        return Command(
            sbatch_arguments.by_bash(_program("submit_once"), "sbatch"), stdin=stdin, timeout=LOCK_WAIT + TIMEOUT
        )

    def read(self, answer: CommandOutput) -> tuple[Submitted, ...]:
        if answer.status:
            error = errors.from_output((errors.SUBMISSION,), answer.status, b"", answer.stderr)
            if answer.status == _NO_LOCK and isinstance(error, errors.NotPermitted):
                raise errors.NotPermitted(error.said, error.command, "the user needs a home there that it may write")
            raise error
        found = dict(self._outcome(line) for line in answer.text.splitlines())
        refused = {place: one for place, one in found.items() if one.error}
        if self.together is Together.END or (self.together and refused):
            found = dict.fromkeys(range(len(self.jobs)), Submitted(None)) | refused
        if found.keys() != set(range(len(self.jobs))):
            raise errors.UnreadableAnswer(f"expected {len(self.jobs)} answers, got {len(found)}", "sbatch")
        return tuple(found[place] for place in range(len(self.jobs)))

    def _fields(self) -> Iterator[bytes]:
        since = self.since or datetime.now(timezone.utc) - LOOK_BACK
        keys = self.submission_keys()
        names = tuple(packs.names_in_queue(job.name or "" for job in self.jobs))
        past = Accounting(names=names, since=since).selections(MOST)
        shared = list(dict.fromkeys(key.shared.text for key in keys if key.element is not None))
        together = self.together.value if self.together else ""
        words = (HELD, WITHDRAWN, unknown_key(self.mark), errors.PASSING, errors.COUNT_LIMITS, GONE.pattern)
        yield from _encoded(LOCK_WAIT, WORK_TIME, KEPT, self.mark, self.fresh, together, *words, shared, past)
        yield from _encoded(len(self.calls))
        of_all = frozenset(keys)
        for call in self.calls:
            yield from self._job_fields(call, of_all)

    def _job_fields(self, call: packs.Pack, of_all: frozenset[SubmissionKey]) -> Iterator[bytes]:
        job, key = call.job, call.key
        waits_for, asked = dependency_of(job), sbatch_arguments.asked_for(job)
        # As a number: scontrol does not know TOP.
        kind = job_description.PRIORITY
        priority = "" if asked.priority is None else kind.json(kind.write(asked.priority))["number"]
        comments = [part.comment or "" for part in sbatch_arguments.components(job)] if self.together else []
        if self.together and not asked.hold and of_all.isdisjoint(waits_for.keys):
            # It must not start before the others exist. A release resets the priority, so its own is set afterwards.
            job = sbatch_arguments.with_lines(job).replace(hold=True, comment=HELD, priority=None)
        if not waits_for.is_plain:
            job = sbatch_arguments.with_lines(job).replace(dependency=PLACEHOLDER)
        elements = [str(element) for element in call.places if element is not None]
        if elements:
            job = job.replace(array=elements[0])
        submission = job.submission()
        place = "" if waits_for.is_plain else str(submission.argv.index(f"--dependency={PLACEHOLDER}"))
        array = str(submission.argv.index(f"--array={elements[0]}")) if elements else ""
        plain = b"\0" not in submission.stdin
        yield from _encoded(key, readable_job_name(job), waits_for.is_singleton, waits_for.rest)
        yield from _encoded(" ".join(map(str, waits_for.keys)), place, priority, comments)
        # A script's own --chdir, which is an array's, is no folder to submit from.
        folder = sbatch_arguments.submit_folder(self.jobs[next(iter(call.places.values()))])
        yield from _encoded(submission.argv, folder, array, elements, "text" if plain else "base64")
        yield submission.stdin if plain else base64.b64encode(submission.stdin)

    def _outcome(self, line: str) -> tuple[int, Submitted]:
        which, kind, rest = line.split(" ", 2)
        number, _, element = which.partition("_")
        place = self.calls[int(number)].places[int(element) if element else None]
        if kind == "left":
            return place, Submitted(None, error=errors.NotReached("the time of the request was over", "sbatch"))
        if kind == "withdrawn":
            return place, Submitted(None, error=errors.SubmissionWithdrawn("the submission was withdrawn", "sbatch"))
        if kind == "failed":
            status, _, said = rest.partition(" ")
            error = errors.from_output(("sbatch",), int(status), b"", base64.b64decode(said))
            return place, Submitted(None, error=error)
        return place, Submitted(JobId.parse(rest), adopted=kind == "adopted")


_TOUCH = "exec xargs touch --"
_WRITE = 'while read -r key name; do printf %s "$name" >".new.$key" && mv -f ".new.$key" "$key" || exit; done'
#: Where the programs look for withdrawals.
_WITHDRAWALS = '"${HOME:-/tmp}/.cache/airflow-soperator/withdrawn"'


@dataclass(frozen=True)
class Withdraw(Order):
    """Withdraw the submissions of these keys that have begun; later ones are not met.

    ``is_void``: the opposite, as another try goes on with the jobs. ``names``: what the jobs are called before they are
    cancelled, if later submissions have the same keys.
    """

    keys: tuple[SubmissionKey, ...]
    is_void: bool = False
    names: tuple[str, ...] = ()

    def command(self) -> Command:
        if self.is_void:
            program = f"cd {_WITHDRAWALS} 2>/dev/null || exit 0; exec xargs rm -f --"
        else:
            program = f"mkdir -p -m 700 {_WITHDRAWALS} && cd {_WITHDRAWALS} && {_WRITE if self.names else _TOUCH}"
        names = self.names or ("",) * len(self.keys)
        lines = (f"{key} {name}".rstrip() for key, name in zip(self.keys, names, strict=True))
        return Command(("sh", "-c", program), stdin="".join(f"{line}\n" for line in lines).encode())


@dataclass(frozen=True)
class CancelWithdrawn(Order):
    """Cancel the jobs that were withdrawn and are still there: who was to do that may not have reached slurmctld."""

    def command(self) -> Command:
        mark = f"~{secrets.token_hex(8)}"
        return Command(
            ("env", f"mark={mark}", f"keep={KEPT}", *sbatch_arguments.by_bash(_program("cancel_withdrawn"), "scancel"))
        )


def _encoded(*values: Any) -> Iterator[bytes]:
    """Values as fields of the program's input; a list follows its length."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _encoded(len(value), *value)
        else:
            yield ("yes" if value is True else "no" if value is False else str(value)).encode()


_REFERENCE, _NUMBER = (re.compile(rf"(?<=:){job}(?![a-z0-9])") for job in ("[a-z2-7]{12}", r"\d+"))

#: The id of the job that a key stands for.
IdOf = Callable[[SubmissionKey], int]


@dataclass(frozen=True)
class KeyedDependency:
    """A dependency that may name jobs by their submission keys, or all of the same name."""

    #: Slurm's notation without ``singleton``, with keys among the ids.
    rest: str
    is_singleton: bool

    @cached_property
    def keys(self) -> tuple[SubmissionKey, ...]:
        return tuple(dict.fromkeys(map(SubmissionKey, _REFERENCE.findall(self.rest))))

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the jobs that it names by their ids."""
        return frozenset(map(int, _NUMBER.findall(self.rest)))

    @property
    def is_plain(self) -> bool:
        """True if Slurm itself understands the dependency."""
        return not self.keys and not self.is_singleton

    def resolve(self, id_of: IdOf, same_name: Sequence[int] = ()) -> str:
        """Slurm's notation with ids; empty without any dependency. ``same_name``: unfinished jobs of that name."""
        rest = _REFERENCE.sub(lambda found: str(id_of(SubmissionKey(found[0]))), self.rest)
        alike = ":".join(("afterany", *map(str, same_name))) if self.is_singleton and same_name else ""
        return ",".join(filter(None, (rest, alike)))


def dependency_of(job: JobDescription) -> KeyedDependency:
    """The dependency of a job, from its fields or its script."""
    wanted = sbatch_arguments.asked_for(job).dependency
    text = "" if wanted is None else dependencies.dependency_text(wanted)
    if "?" in text and "singleton" in text.lower().split("?"):
        raise errors.InvalidRequest(f"{text!r}: singleton cannot be joined with '?'")
    terms = [term for term in text.split(",") if term]
    rest = [term for term in terms if term.lower() != "singleton"]
    return KeyedDependency(",".join(rest), is_singleton=rest != terms)


def readable_job_name(job: JobDescription) -> str:
    """The user's own name of a job, without the key."""
    return strip_key(job.name or "")


def in_order(jobs: Sequence[JobDescription]) -> tuple[int, ...]:
    """The places of the jobs in an order in which each comes after its dependencies.

    Jobs without dependencies come first, and so on, so that as many as possible can be submitted in parallel. With
    ``singleton`` a job comes after those of its name that stand before it, as it waits for those that are there.
    """
    places = {key_of(job.name or ""): place for place, job in enumerate(jobs)}
    asked = list(map(dependency_of, jobs))
    waits = {place: [places[key] for key in one.keys if key in places] for place, one in enumerate(asked)}
    # Otherwise their order means nothing, and could be against their dependencies.
    if all(before < place for place, needed in waits.items() for before in needed):
        called = list(map(readable_job_name, jobs))
        for place, one in enumerate(asked):
            if one.is_singleton:
                waits[place] += [before for before in range(place) if called[before] == called[place]]
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError as error:
        names = " -> ".join(readable_job_name(jobs[place]) for place in reversed(error.args[1]))
        raise errors.InvalidRequest(f"these jobs wait for each other, so none could start: {names}") from None
    found: list[int] = []
    while ready := sorted(sorter.get_ready()):
        found += ready
        sorter.done(*ready)
    return tuple(found)
