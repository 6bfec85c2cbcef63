"""Dependencies of jobs: as submitted, and the unmet rest as slurmctld shows it.

Satisfied terms are no longer shown, and those that can never be satisfied are marked as failed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey

#: Slurm's types of dependencies.
DEPENDENCY_KINDS = (
    *("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok"),
    *("expand", "singleton"),
)

#: A job id or a submission key; keys have twelve letters or digits, more than any id.
_JOB = re.compile(r"(?:[1-9]\d*|[a-z2-7]{12})(?:_(?:\d+|\*))?")


@dataclass(frozen=True)
class Dependency:
    """A condition on other jobs.

    With ``SubmitOnce`` a job may name others by their submission keys: jobs of the same request, or any of the user's
    in the queue. ``singleton`` then waits for all jobs of the user with the same name, without keys.

    >>> str(Dependency("afterok", 12, 13)), str(Dependency("after", 12, minutes=5)), str(Dependency("singleton"))
    ('afterok:12:13', 'after:12+5', 'singleton')
    >>> str(Dependency("aftercorr", SubmissionKey("q6befiawjvkz")))
    'aftercorr:q6befiawjvkz'
    """

    kind: str
    jobs: tuple[str, ...]
    minutes: int

    def __init__(self, kind: str, *jobs: int | str | SubmissionKey, minutes: int = 0) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "jobs", tuple(str(job) for job in jobs))
        object.__setattr__(self, "minutes", minutes)

    def __str__(self) -> str:
        delay = f"+{self.minutes}" if self.minutes else ""
        return ":".join((self.kind, *(job + delay for job in self.jobs)))

    def problems(self) -> list[str]:
        if self.kind not in DEPENDENCY_KINDS:
            return [f"{self.kind!r} is not a type of dependency: {name_remedy(self.kind, DEPENDENCY_KINDS)}"]
        found = [f"{job!r} is neither a job id nor a submission key" for job in self.jobs if not _JOB.fullmatch(job)]
        if self.kind == "singleton" and self.jobs:
            found.append("singleton waits for jobs of the same name and takes no job id")
        if self.kind != "singleton" and not self.jobs:
            found.append(f"{self.kind} needs the id of a job")
        if self.minutes and self.kind != "after":
            found.append(f"only after takes minutes, {self.kind} does not")
        if self.minutes < 0:
            found.append(f"minutes must be >= 0, got {self.minutes}")
        return found


#: Dependencies as users write them; a sequence means all of them, as do commas in a text, and "?" one of them.
Dependencies = Dependency | Sequence[Dependency | str] | str


def dependency_terms(value: Dependencies) -> tuple[Dependency, ...]:
    """The single dependencies of a value; ValueError if it is not one."""
    if isinstance(value, Dependency):
        return (value,)
    if not isinstance(value, str):
        return tuple(term for part in value for term in dependency_terms(part))
    if "," in value and "?" in value:
        raise ValueError(f"{value!r} has both ',' (all) and '?' (any); Slurm takes only one of them")
    found: list[Dependency] = []
    for term in re.split("[,?]", value):
        kind, *jobs = term.split(":")
        # Each delay needs a dependency of its own.
        by_delay: dict[int, list[str]] = {} if jobs else {0: []}
        for job, _, delay in (written.partition("+") for written in jobs):
            if delay and not delay.isdecimal():
                raise ValueError(f"{term!r} has {delay!r} where minutes are expected")
            by_delay.setdefault(int(delay or 0), []).append(job)
        found += (Dependency(kind.lower(), *these, minutes=delay) for delay, these in sorted(by_delay.items()))
    return tuple(found)


def dependency_text(value: Dependencies) -> str:
    return str(value) if isinstance(value, (str, Dependency)) else ",".join(map(str, value))


_TERM = re.compile(
    r"(?P<kind>[a-z]+)(?::(?P<job>[0-9]+)(?P<elements>_[0-9]+|_\*)?(?P<delay>\+[0-9]+)?)?(?:\((?P<state>[a-z]+)\))?"
)


@dataclass(frozen=True)
class UnmetTerm:
    """One unmet dependency of a job."""

    kind: str
    #: None for a term without a job, such as ``singleton``.
    job: JobId | None
    delay: str
    is_failed: bool

    def is_on(self, jobs: Collection[int]) -> bool:
        return self.job is not None and self.job.job in jobs

    def __str__(self) -> str:
        return self.kind if self.job is None else f"{self.kind}:{self.job}{self.delay}"


@dataclass(frozen=True)
class Unmet:
    """The unmet dependencies of a job."""

    terms: tuple[UnmetTerm, ...] = ()
    #: True if one of them is enough.
    is_any: bool = False

    @classmethod
    def parse(cls, text: str) -> Unmet:
        """Read Slurm's notation; ``ValueError`` for anything else."""
        return cls(tuple(map(_term, filter(None, re.split("[,?]", text)))), "?" in text)

    def __str__(self) -> str:
        return ("?" if self.is_any else ",").join(map(str, self.terms))

    def relinked(self, old: JobId, new: JobId) -> Unmet:
        """Replace one job by another; an element of an array is replaced by the same element."""

        def relink(term: UnmetTerm) -> UnmetTerm:
            if term.job is None or not old.covers(term.job):
                return term
            same = replace(new, element=term.job.element) if old.element is None and new.element is None else new
            return replace(term, job=same, is_failed=False)

        return replace(self, terms=tuple(map(relink, self.terms)))

    def without(self, jobs: Collection[int]) -> Unmet:
        """Drop the terms on these jobs."""
        return replace(self, terms=tuple(term for term in self.terms if not term.is_on(jobs)))

    @property
    def is_vain(self) -> bool:
        """True if the job can never start."""
        failed = [term.is_failed for term in self.terms]
        return bool(failed) and (all(failed) if self.is_any else any(failed))

    def possible(self, kept: Collection[int] = ()) -> Unmet:
        """Drop the terms that can never be satisfied, except those on ``kept`` jobs."""
        return replace(self, terms=tuple(term for term in self.terms if not term.is_failed or term.is_on(kept)))


def _term(text: str) -> UnmetTerm:
    found = _TERM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a dependency in Slurm's notation")
    # A whole array is shown with "_*" or without.
    element = (found["elements"] or "").removeprefix("_").removesuffix("*")
    job = JobId(int(found["job"]), element=int(element) if element else None) if found["job"] else None
    return UnmetTerm(found["kind"], job, found["delay"] or "", found["state"] == "failed")
