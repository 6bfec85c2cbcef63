"""The parts of a job that are more than a word: dependencies, arrays and signals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm.keys import SubmissionKey

#: What one job can wait for in others.
DEPENDENCY_KINDS = (
    *("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok"),
    *("expand", "singleton"),
)

#: The signals whose names Slurm knows.
SIGNALS = frozenset(
    {
        *("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "CHLD", "USR1", "USR2"),
        *("PIPE", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"),
    }
)

#: A job by its id or by the key of its submission, which no id can be: keys have twelve letters or digits.
_JOB = re.compile(r"(?:[1-9]\d*|[a-z2-7]{12})(?:_(?:\d+|\*))?")


@dataclass(frozen=True)
class Dependency:
    """What a job waits for in other jobs.

    A job that is submitted once may name others by the keys of their submissions: jobs of the same ``SubmitOnce``, or
    any of the user's in the queue. ``singleton`` waits there for all jobs of the user that have the same name but for
    the key that names end in.

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
            return [f"{self.kind!r} is no kind of dependency; there are {', '.join(DEPENDENCY_KINDS)}"]
        found = [f"{job!r} is no job id, and no key of a submission" for job in self.jobs if not _JOB.fullmatch(job)]
        if self.kind == "singleton" and self.jobs:
            found.append("singleton waits for jobs of the same name and takes no job id")
        if self.kind != "singleton" and not self.jobs:
            found.append(f"{self.kind} needs the id of a job")
        if self.minutes and self.kind != "after":
            found.append(f"only after takes minutes, {self.kind} does not")
        if self.minutes < 0:
            found.append(f"{self.minutes} minutes are negative")
        return found


@dataclass(frozen=True)
class AnyOf:
    """Dependencies of which one is enough.

    >>> str(AnyOf(Dependency("afterok", 1), Dependency("afternotok", 2)))
    'afterok:1?afternotok:2'
    """

    terms: tuple[Dependency, ...]

    def __init__(self, *terms: Dependency) -> None:
        object.__setattr__(self, "terms", terms)

    def __str__(self) -> str:
        return "?".join(map(str, self.terms))


def dependency_terms(value: Dependency | AnyOf | Sequence[Dependency | str] | str) -> tuple[Dependency, ...]:
    """The single dependencies that a value is made of; ValueError on what is none.

    >>> dependency_terms("afterok:1:2,singleton")[0].jobs
    ('1', '2')
    """
    if isinstance(value, Dependency):
        return (value,)
    if isinstance(value, AnyOf):
        return value.terms
    if not isinstance(value, str):
        return tuple(term for part in value for term in dependency_terms(part))
    if "," in value and "?" in value:
        raise ValueError(f"{value!r} joins with both ',' (all) and '?' (any); Slurm takes one of them")
    found: list[Dependency] = []
    for term in re.split("[,?]", value):
        kind, *jobs = term.split(":")
        delays = {job.partition("+")[2] for job in jobs}
        plain = [job.partition("+")[0] for job in jobs]
        for delay in sorted(delays):
            if delay and not delay.isdecimal():
                raise ValueError(f"{term!r} has {delay!r} where minutes are expected")
        # Jobs with different delays are as many dependencies.
        by_delay = sorted(delays) or [""]
        for delay in by_delay:
            these = [job for job, written in zip(plain, jobs, strict=True) if written.partition("+")[2] == delay]
            found.append(Dependency(kind.lower(), *these, minutes=int(delay or 0)))
    return tuple(found)


def dependency_text(value: Dependency | AnyOf | Sequence[Dependency | str] | str) -> str:
    if isinstance(value, (str, Dependency, AnyOf)):
        return str(value)
    return ",".join(map(str, value))


@dataclass(frozen=True)
class Signal:
    """A signal that the job gets before its time is up.

    >>> str(Signal("USR1", seconds=120, batch_only=True))
    'B:USR1@120'
    """

    name: str | int
    seconds: int = 60
    #: Only to the batch script itself, not to its steps.
    batch_only: bool = False
    #: Also when a reservation that overlaps the job is about to begin.
    reservation: bool = False

    def __str__(self) -> str:
        prefix = "R" * self.reservation + "B" * self.batch_only
        return f"{prefix}{':' if prefix else ''}{str(self.name).upper().removeprefix('SIG')}@{self.seconds}"

    @classmethod
    def parse(cls, text: str) -> Signal:
        found = re.fullmatch(r"(?:(?P<flags>[BR]{1,2}):)?(?P<name>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} is no signal: write [R][B:]NAME[@SECONDS], such as B:USR1@120")
        name = found["name"].upper().removeprefix("SIG")
        flags = found["flags"] or ""
        return cls(int(name) if name.isdecimal() else name, int(found["seconds"] or 60), "B" in flags, "R" in flags)

    def problems(self) -> list[str]:
        name = str(self.name).upper().removeprefix("SIG")
        found = []
        if not (0 < int(name) < 65 if name.isdecimal() else name in SIGNALS):
            found.append(f"{self.name!r} is no signal that Slurm knows")
        if not 0 <= self.seconds <= 65_535:
            found.append(f"{self.seconds} seconds is not between 0 and 65535")
        return found


def array_text(indices: str | range | Iterable[int], limit: int | None = None) -> str:
    """The indices of an array, and how many of its elements may run at once, in Slurm's notation.

    >>> array_text(range(0, 10, 2)), array_text([1, 2, 3, 7], limit=2), array_text("5-9")
    ('0-8:2', '1-3,7%2', '5-9')
    """
    text = indices if isinstance(indices, str) else _compact(sorted(set(indices)))
    return f"{text}%{limit}" if limit is not None else text


def _compact(indices: list[int]) -> str:
    """Neighbours as ranges; a lone even spacing of three and more as one range with a step."""
    if len(indices) > 2:
        steps = {after - before for before, after in itertools.pairwise(indices)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return f"{indices[0]}-{indices[-1]}:{step}"
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def array_indices(text: str) -> list[int]:
    """The indices that an array's notation stands for; ValueError on what is none.

    >>> array_indices("1-10:4,3%2")
    [1, 3, 5, 9]
    """
    found: set[int] = set()
    for part in text.partition("%")[0].split(","):
        matched = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if matched is None:
            raise ValueError(f"{part!r} is no index, range or range with a step (5, 0-9, 0-9:3)")
        first, last, step = int(matched[1]), int(matched[2] or matched[1]), int(matched[3] or 1)
        if last < first:
            raise ValueError(f"{part!r} runs backwards")
        if step < 1:
            raise ValueError(f"{part!r} has a step of 0")
        if (last - first) // step > 4_000_000:  # the largest MaxArraySize that Slurm allows is 4,000,001
            raise ValueError(f"{part!r} has more elements than any Slurm allows")
        found.update(range(first, last + 1, step))
    return sorted(found)


def as_words(value: Any) -> list[str]:
    """A list that may also be written as one text with commas."""
    return value.split(",") if isinstance(value, str) else [str(part) for part in value]
