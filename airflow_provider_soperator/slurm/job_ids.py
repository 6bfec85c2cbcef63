"""Ids of jobs, array elements, components and steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import total_ordering
from typing import Any

_ID = re.compile(
    r"(?P<job>[0-9]+)"
    r"(?:_(?:(?P<element>[0-9]+)|\[(?P<elements>[0-9,:%.-]+)\]))?"
    r"(?:\+(?P<part>[0-9]+))?"
    r"(?:\.(?P<step>[A-Za-z0-9_+]+))?"
    # ``sbatch --parsable`` adds the cluster if there are several.
    r"(?:;[A-Za-z0-9_.-]+)?"
)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


@total_ordering
@dataclass(frozen=True)
class JobId:
    """A job, or a part of one, in the notation of Slurm's commands.

    >>> JobId.parse("123_4.batch")
    JobId.parse('123_4.batch')
    >>> JobId.parse("123_[1-3,7%2]").covers(JobId.parse("123_7"))
    True
    """

    job: int
    #: Index in a job array.
    element: int | None = None
    #: The pending elements of a job array that are one entry of the queue: ``1-5,7%2``.
    elements: str = ""
    #: Offset in a heterogeneous job.
    part: int | None = None
    #: ``batch``, ``extern``, ``interactive`` or a number.
    step: str = ""

    @classmethod
    def parse(cls, text: str | int) -> JobId:
        """Read any of Slurm's notations; ``ValueError`` for anything else."""
        found = _ID.fullmatch(str(text).strip())
        if not found or int(found["job"]) == 0:
            raise ValueError(f"{text!r} is not a Slurm job id (such as 123, 123_4, 123_[1-5], 123+1 or 123.batch)")
        return cls(
            job=int(found["job"]),
            element=None if found["element"] is None else int(found["element"]),
            elements=found["elements"] or "",
            part=None if found["part"] is None else int(found["part"]),
            step=found["step"] or "",
        )

    def __str__(self) -> str:
        element = f"_[{self.elements}]" if self.elements else "" if self.element is None else f"_{self.element}"
        part = "" if self.part is None else f"+{self.part}"
        return f"{self.job}{element}{part}{'.' if self.step else ''}{self.step}"

    def __repr__(self) -> str:
        return f"JobId.parse({str(self)!r})"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, JobId):
            return NotImplemented
        return self._order() < other._order()

    def _order(self) -> tuple[object, ...]:
        # A whole job comes before its parts, and pending elements after the others.
        number = (0, int(self.step), "") if self.step.isdecimal() else (1, 0, self.step)
        return (
            self.job,
            bool(self.elements),
            -1 if self.element is None else self.element,
            self.elements,
            -1 if self.part is None else self.part,
            bool(self.step),
            number,
        )

    @property
    def whole(self) -> JobId:
        """The submitted job that this is an element, a part or a step of."""
        return JobId(self.job)

    @property
    def without_step(self) -> JobId:
        return replace(self, step="")

    @property
    def without_part(self) -> JobId:
        """The id to requeue: of a heterogeneous job Slurm takes no single part."""
        return replace(self, part=None)

    @property
    def limit(self) -> int | None:
        """The number of elements of the array that may run at once, if this id is of pending ones and has it.

        >>> JobId.parse("123_[1-3,7%2]").limit, JobId.parse("123_[1-3,7]").limit
        (2, None)
        """
        limit = self.elements.partition("%")[2]
        return int(limit) if limit else None

    def indices(self) -> Iterator[int]:
        """The indices of the array elements that this id covers; none without an array."""
        if self.element is not None:
            yield self.element
        for found in self._ranges():
            yield from found

    @property
    def argument(self) -> str:
        """The id as an argument of commands, which do not read every range that ``squeue`` prints.

        >>> JobId.parse("9_[0-3,10-20:5%2]").argument
        '9_[0-3,10,15,20]'
        """
        if not self.elements:
            return str(self)
        pieces: list[str] = []
        for found in self._ranges():
            if found.step == 1 and len(found) > 1:
                pieces.append(f"{found[0]}-{found[-1]}")
            else:
                pieces += map(str, found)
        return str(replace(self, elements=",".join(pieces)))

    def covers(self, other: JobId) -> bool:
        """True if the other is this job, or one of its elements, parts or steps."""
        is_same = self.job == other.job and self.step in ("", other.step) and self.part in (None, other.part)
        if not is_same or (self.element is None and not self.elements):
            return is_same
        if other.elements:
            return set(other.indices()) <= set(self.indices())
        if self.element is not None:
            return self.element == other.element
        return any(other.element in found for found in self._ranges())

    def _ranges(self) -> Iterator[range]:
        try:
            yield from _array_ranges(self.elements) if self.elements else ()
        except ValueError:
            raise ValueError(f"the elements of {self} are unknown: Slurm truncated the list") from None


def array_text(indices: str | range | Iterable[int | str], limit: int | None = None) -> str:
    """The indices of an array, and the number of elements that may run at once, in Slurm's notation.

    >>> array_text(range(0, 10, 2)), array_text([1, 2, 3, 7], limit=2), array_text("5-9")
    ('0-8:2', '1-3,7%2', '5-9')
    """
    words: Any = [indices] if isinstance(indices, str) else list(indices)
    has_text = any(isinstance(word, str) for word in words)
    text = ",".join(map(str, words)) if has_text else _compact(sorted(set(words)))
    return f"{text}%{limit}" if limit is not None else text


def _compact(indices: list[int]) -> str:
    """Neighbours as ranges; three or more evenly spaced indices as one range with a step."""
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
    """The indices of an array in Slurm's notation; ValueError for anything else.

    >>> array_indices("1-10:4,3%2")
    [1, 3, 5, 9]
    """
    return sorted({index for some in _array_ranges(text) for index in some})


def _array_ranges(text: str) -> Iterator[range]:
    for part in text.partition("%")[0].split(","):
        matched = _RANGE.fullmatch(part)
        if matched is None:
            raise ValueError(f"{part!r} is not an index, a range or a range with a step (5, 0-9, 0-9:3)")
        first, last, step = int(matched[1]), int(matched[2] or matched[1]), int(matched[3] or 1)
        if last < first:
            raise ValueError(f"{part!r} runs backwards")
        if step < 1:
            raise ValueError(f"{part!r} has a step of 0")
        if (last - first) // step > 4_000_000:  # the largest MaxArraySize that Slurm allows is 4,000,001
            raise ValueError(f"{part!r} has more elements than any Slurm allows")
        yield range(first, last + 1, step)


def ids_in(text: str) -> list[JobId]:
    """The ids in a text with commas between them; ValueError for anything else.

    >>> [str(job) for job in ids_in("7, 8_[1,3-5]")]
    ['7', '8_[1,3-5]']
    """
    found = [JobId.parse(one) for one in re.split(r",(?![^\[]*\])", text) if one.strip()]
    for job in found:
        # Slurm may cut its own lists, which are read all the same.
        list(_array_ranges(job.elements or "0"))
    return found


class JobIdSet:
    """Set of jobs with a fast lookup of jobs, their parts and their wholes."""

    def __init__(self, ids: Iterable[JobId]) -> None:
        self._by_number: dict[int, list[JobId]] = {}
        for job in dict.fromkeys(ids):
            self._by_number.setdefault(job.job, []).append(job)

    def touches(self, job: JobId) -> bool:
        """True if the set has the given job, a part of it, or a job that it is a part of."""
        return any(one.covers(job) or job.covers(one) for one in self._by_number.get(job.job, ()))
