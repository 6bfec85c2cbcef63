"""What the jobs of one submission wait for: other jobs by the keys of their submissions, and those of the same name.

Slurm knows neither keys nor names without them, so whoever submits puts ids in their place, at the last moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from airflow_provider_soperator.slurm import checks, directives, payload, rendering, terms
from airflow_provider_soperator.slurm.description import Job, JobDescription
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.keys import SubmissionKey, key_of, strip_key

_REFERENCE = re.compile(r"(?<=:)[a-z2-7]{12}(?![a-z0-9])")
_SINGLETON = "singleton"

#: The id of the job that a key stands for.
IdOf = Callable[[SubmissionKey], int]


@dataclass(frozen=True)
class Waits:
    """What a job waits for, apart from ids of jobs.

    >>> Waits("afterok:12:q6befiawjvkz_3,singleton").resolve(lambda key: 13, same_name=[7, 9])
    'afterok:12:13_3,afterany:7:9'
    """

    #: As Slurm writes dependencies, but with keys among the ids.
    text: str = ""

    @cached_property
    def keys(self) -> tuple[SubmissionKey, ...]:
        return tuple(dict.fromkeys(map(SubmissionKey, _REFERENCE.findall(self.text))))

    @property
    def is_singleton(self) -> bool:
        return _SINGLETON in self._terms

    @property
    def rest(self) -> str:
        """All but the jobs of the same name."""
        return ",".join(term for term in self._terms if term != _SINGLETON)

    @property
    def is_plain(self) -> bool:
        """Whether Slurm itself knows what is meant."""
        return not self.keys and not self.is_singleton

    def resolve(self, id_of: IdOf, same_name: Sequence[int] = ()) -> str:
        """As Slurm takes it; empty if there is nothing to wait for. ``same_name``: unfinished jobs of that name."""
        rest = _REFERENCE.sub(lambda found: str(id_of(SubmissionKey(found[0]))), self.rest)
        alike = ":".join(("afterany", *map(str, same_name))) if self.is_singleton and same_name else ""
        return ",".join(filter(None, (rest, alike)))

    @cached_property
    def _terms(self) -> list[str]:
        return [_SINGLETON if term.lower() == _SINGLETON else term for term in self.text.split(",") if term]


def with_extra_args(job: Job) -> Job:
    """The job with those options that are among its extra words as fields."""
    return payload.with_lines(job, directives.Component()) if job.extra_args else job


def asked_for(job: Job) -> Job:
    """The job with all that is asked for in #SBATCH lines and extra words, too, as fields of its first component."""
    text = rendering.body(job) or ""
    if not job.extra_args and "#SBATCH" not in text and "#SLURM" not in text:
        return job
    try:
        return payload.with_lines(job, directives.read(text)[0])
    except directives.DirectiveError as wrong:
        raise checks.InvalidJob([f"script: {wrong}"]) from None


def waits_of(job: JobDescription) -> Waits:
    """What a job waits for, whether it says so itself or its script does."""
    wanted = asked_for(job).dependency
    found = Waits() if wanted is None else Waits(terms.dependency_text(wanted))
    if "?" in found.text and _SINGLETON in found.text.lower().split("?"):
        raise InvalidRequest(f"{found.text!r}: singleton cannot be one of several terms of which one is enough")
    return found


def readable(job: JobDescription) -> str:
    """The name of a job that is submitted once, as its user gave it."""
    return strip_key(job.name or "")


def in_order(jobs: Sequence[JobDescription]) -> tuple[int, ...]:
    """The places of the jobs in an order in which each comes after those that it waits for.

    Those that wait for no other come first, and so on, so that as many as possible can be submitted side by side.
    """
    places = {key_of(job.name or ""): place for place, job in enumerate(jobs)}
    waits = {place: [places[key] for key in waits_of(job).keys if key in places] for place, job in enumerate(jobs)}
    return _levels(waits, jobs)


def _levels(waits: Mapping[int, Sequence[int]], jobs: Sequence[JobDescription]) -> tuple[int, ...]:
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError as error:
        names = " -> ".join(readable(jobs[place]) for place in reversed(error.args[1]))
        raise InvalidRequest(f"these jobs wait for each other, so none could ever start: {names}") from None
    found: list[int] = []
    while ready := sorted(sorter.get_ready()):
        found += ready
        sorter.done(*ready)
    return tuple(found)
