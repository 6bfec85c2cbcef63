"""What a job in the queue still waits for, as slurmctld shows it: each term with where it stands.

Terms that are satisfied are no longer there, and those that can never be are marked as failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_soperator.slurm.ids import JobId

_TERM = re.compile(
    r"(?P<kind>[a-z]+)(?::(?P<job>[0-9]+)(?P<elements>_[0-9]+|_\*)?(?P<delay>\+[0-9]+)?)?(?:\((?P<state>[a-z]+)\))?"
)


@dataclass(frozen=True)
class UnmetTerm:
    """One thing that a job waits for."""

    kind: str
    #: None for what names no job, as ``singleton`` does.
    job: JobId | None
    delay: str
    is_failed: bool

    def __str__(self) -> str:
        return self.kind if self.job is None else f"{self.kind}:{self.job}{self.delay}"


@dataclass(frozen=True)
class Unmet:
    """All that a job waits for.

    >>> unmet = Unmet.parse("afterok:7(failed),aftercorr:8_*(unfulfilled),after:9+5(unfulfilled)")
    >>> str(unmet), str(unmet.relinked(JobId(7), JobId(12))), str(unmet.possible)
    ('afterok:7,aftercorr:8,after:9+5', 'afterok:12,aftercorr:8,after:9+5', 'aftercorr:8,after:9+5')
    """

    terms: tuple[UnmetTerm, ...] = ()
    #: Whether one of them is enough.
    is_any: bool = False

    @classmethod
    def parse(cls, text: str) -> Unmet:
        """``ValueError`` on what no Slurm is known to show."""
        return cls(tuple(map(_term, filter(None, re.split("[,?]", text)))), "?" in text)

    def __str__(self) -> str:
        """As Slurm takes it."""
        return ("?" if self.is_any else ",").join(map(str, self.terms))

    def relinked(self, old: JobId, new: JobId) -> Unmet:
        """With one job in the place of another; an element of an array is replaced by the same element."""

        def relink(term: UnmetTerm) -> UnmetTerm:
            if term.job is None or not old.covers(term.job):
                return term
            same = replace(new, element=term.job.element) if old.element is None and new.element is None else new
            return replace(term, job=same, is_failed=False)

        return self._each(relink)

    @property
    def is_vain(self) -> bool:
        """Whether the job can never start."""
        failed = [term.is_failed for term in self.terms]
        return bool(failed) and (all(failed) if self.is_any else any(failed))

    @property
    def possible(self) -> Unmet:
        """Without what can never come."""
        return replace(self, terms=tuple(term for term in self.terms if not term.is_failed))

    def _each(self, change: Callable[[UnmetTerm], UnmetTerm]) -> Unmet:
        return replace(self, terms=tuple(map(change, self.terms)))


def _term(text: str) -> UnmetTerm:
    found = _TERM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no dependency as Slurm shows it")
    # A whole array is shown with "_*", and is meant without it, too.
    element = (found["elements"] or "").removeprefix("_").removesuffix("*")
    job = JobId(int(found["job"]), element=int(element) if element else None) if found["job"] else None
    return UnmetTerm(found["kind"], job, found["delay"] or "", found["state"] == "failed")
