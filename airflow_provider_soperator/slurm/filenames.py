"""Where a job's output is: Slurm keeps the pattern that the user gave, and its commands mostly print it as it is."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from airflow_provider_soperator.slurm.records import Job

#: A number, for zeros to fill it up with, and the letter.
_PATTERN = re.compile(r"%(?:%|([0-9]*)([A-Za-z]))")
#: What Slurm writes for the index of a job that is in no array.
_NO_INDEX = 0xFFFFFFFE
_MOST_PADDING = 10


def expand(pattern: str, job: Job) -> str:
    """The path that the job's batch script writes to; empty if it cannot be told (yet).

    >>> from airflow_provider_soperator.slurm.ids import JobId
    >>> expand("/home/me/%x-%4A_%a.out", Job(id=JobId.parse("12_3"), raw_id=15, name="fit"))
    '/home/me/fit-0012_3.out'
    """
    if not pattern or job.id.is_array_range:
        return ""
    path = str(PurePosixPath(job.workdir) / pattern) if job.workdir else pattern
    if "\\" in pattern:
        # So Slurm is told to leave it alone.
        return path.replace("\\", "")
    unknown = False

    def value(found: re.Match[str]) -> str:
        nonlocal unknown
        if found[0] == "%%":
            return "%"
        padding, letter = min(int(found[1] or 0), _MOST_PADDING), found[2]
        if letter not in _LETTERS:
            return found[0]
        said = _value(letter, job)
        unknown |= not said
        return said.zfill(padding) if said.isdecimal() else said

    expanded = _PATTERN.sub(value, path)
    return "" if unknown else expanded


#: ``S``, which newer versions have, stands for a number that the queue does not show.
_LETTERS = frozenset("AabJjNnrSstux")


def _value(letter: str, job: Job) -> str:
    index = _NO_INDEX if job.id.element is None else job.id.element
    values = {
        "A": str(job.id.job),
        "a": str(index),
        "b": str(index % 10),
        "J": str(job.raw_id or ""),
        "j": str(job.raw_id or ""),
        "N": job.batch_host.partition(".")[0],
        # Of a batch script there is one, on the first node.
        "n": "0",
        "t": "0",
        "r": str(job.restarts),
        "s": "batch",
        "u": job.user,
        "x": job.name,
    }
    return values.get(letter, "")
