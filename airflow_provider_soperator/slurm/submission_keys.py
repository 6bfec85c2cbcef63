"""Keys of submissions: a submitted job is found again by its key, a suffix of its name.

Only the name is shown by the queue, accounting and every client of Slurm, and has no other meaning to them (accounting
keeps no comment by default). slurmctld takes 1024 bytes of it, but accounting's column has 255, and scripts put it into
file names (`--output=%x-%j.out`), which have 255 as well; so names stay well below that.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId

#: Bytes of a whole job name.
NAME_LIMIT = 200

#: The separator of a name and its key. A user's own name hardly ends like this.
MARK = ".af-"
_LENGTH = 12
#: Mapped tasks share a key, and each has its own element of it.
_KEY = rf"[a-z2-7]{{{_LENGTH}}}(?:_(?P<element>0|[1-9][0-9]*))?"
_KEYED = re.compile(rf"(?P<name>.*){re.escape(MARK)}(?P<key>{_KEY})", re.DOTALL)
#: Mapped tasks that share a key: as many as an array may have elements by default (MaxArraySize).
ELEMENTS = 1000


@dataclass(frozen=True)
class SubmissionKey:
    """Twelve characters that identify one submission of one task.

    They are the first 60 bits of a SHA-256, in lower-case base32: among a million submissions that a cluster
    remembers, the probability that any two share a key is about 4 in 10 million (n²/2 / 2^60), and a lookup of one
    key among them goes wrong with 1 in 10^12.

    Mapped tasks share the characters, and each adds the number of an ``element``, so that many of them can go as one
    array. The key of one is either at the end of a job's name, or that name ends in the ``shared`` key and the job is
    this element of an array.

    >>> key = SubmissionKey.derive("train", "manual__2026-11-21", "fit", -1, "1")
    >>> key.name("train.fit")
    'train.fit.af-q6befiawjvkz'
    >>> key_of("train.fit.af-q6befiawjvkz") == key
    True
    >>> key = SubmissionKey("q6befiawjvkz_17")
    >>> key.element, key.shared.text, key.suffix_of(JobId.parse("8_17")), key.suffix_of(JobId.parse("9"))
    (17, 'q6befiawjvkz', '.af-q6befiawjvkz', '.af-q6befiawjvkz_17')
    """

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(_KEY, self.text):
            raise ValueError(f"{self.text!r} is not a submission key")

    @classmethod
    def derive(
        cls,
        dag_id: str,
        run_id: str,
        task_id: str,
        index: int | str,
        attempt_group: str | int,
        *,
        begun: datetime | None = None,
        element: int | None = None,
    ) -> SubmissionKey:
        """The key of a task's submission; tries that continue with each other's job share an `attempt_group`.

        ``begun``: when the run began, as its id is not unique: a run that is deleted and made again may have it,
        too, and so may one of another Airflow.
        """
        digest = hashlib.sha256()
        moment = [begun.astimezone(timezone.utc).isoformat()] if begun else []
        for part in (dag_id, run_id, task_id, str(index), str(attempt_group), *moment):
            data = part.encode("utf-8", "surrogatepass")
            # With its length, so that different lists of parts have different digests.
            digest.update(len(data).to_bytes(8, "big") + data)
        text = base64.b32encode(digest.digest()).decode()[:_LENGTH].lower()
        return cls(text if element is None else f"{text}_{element}")

    @property
    def suffix(self) -> str:
        """The end of the name of a job that is submitted on its own."""
        return MARK + self.text

    @property
    def element(self) -> int | None:
        _, _, number = self.text.partition("_")
        return int(number) if number else None

    @property
    def shared(self) -> SubmissionKey:
        """The key without its element."""
        return SubmissionKey(self.text.partition("_")[0])

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of the names under which the job may have been submitted."""
        return (self.suffix,) if self.element is None else (self.suffix, self.shared.suffix)

    def suffix_of(self, job: JobId) -> str:
        """The end of the name of the job that was submitted for this key."""
        return self.suffix if job.element is None else self.shared.suffix

    def name(self, readable: str) -> str:
        """A job name that ends in this key, after as much of the readable part as fits."""
        return _shorten(strip_key(readable), NAME_LIMIT - len(self.suffix)) + self.suffix

    def __str__(self) -> str:
        return self.text


def key_of_try(ti: Any, begun: datetime | None, number: int) -> SubmissionKey:
    """The key of a try's job, in a run that began at this time."""
    region = region_of(ti)
    place = ti.region_index if region else ti.map_index
    index, element = region or "-1", None
    if place is not None and place >= 0:
        thousand, element = divmod(place, ELEMENTS)
        index = f"{region}{thousand}/{ELEMENTS}"
    return SubmissionKey.derive(ti.dag_id, ti.run_id, ti.task_id, index, number, begun=begun, element=element)


def region_of(ti: Any) -> str:
    """What tells an iteration of a loop, or what is mapped in one, from others; empty where there is no loop.

    Airflow 3.4: the iterations are instances of one task, all without a map index. The number of an instance in its
    region is ``region_index``, whether it is an iteration or mapped.
    """
    region = getattr(ti, "region_id", None)
    return f"{region}/" if region and region.int else ""


#: Maximum difference of the clocks of Airflow and Slurm.
CLOCKS = timedelta(hours=1)


def submitted_since(begun: datetime | None) -> datetime | None:
    """The time from which on the jobs of a DAG run that began then are looked for."""
    return begun - CLOCKS if begun else None


def key_of(job_name: str, job: JobId | None = None) -> SubmissionKey | None:
    """The key at the end of a job's name, if there is one; with its id the key of an element of mapped tasks' array."""
    found = _KEYED.fullmatch(job_name)
    if not found:
        return None
    element = job.element if job and not found["element"] else None
    return SubmissionKey(found["key"] if element is None else f"{found['key']}_{element}")


class Keys:
    """Submission keys with a fast lookup of the jobs that have them.

    >>> keys = Keys([SubmissionKey("q6befiawjvkz_3"), SubmissionKey("q6befiawjvkz_7")])
    >>> [(str(key), str(job)) for key, job in keys.of("fit.af-q6befiawjvkz", JobId.parse("9_[1-5]"))]
    [('q6befiawjvkz_3', '9_3')]
    """

    def __init__(self, keys: Iterable[SubmissionKey]) -> None:
        self._keys = frozenset(keys)
        self._elements: dict[SubmissionKey, dict[int, SubmissionKey]] = {}
        for key in self._keys:
            if key.element is not None:
                self._elements.setdefault(key.shared, {})[key.element] = key

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of the names of all jobs that may have these keys."""
        return tuple(dict.fromkeys(suffix for key in self._keys for suffix in key.suffixes))

    def of(self, name: str, job: JobId) -> Iterator[tuple[SubmissionKey, JobId]]:
        """The keys that a job of this name has, each with its part of the job."""
        key = key_of(name)
        if key in self._keys:
            yield key, job.whole
        elif key in self._elements:
            wanted = self._elements[key]
            yield from ((wanted[index], JobId(job.job, index)) for index in job.indices() if index in wanted)


def read_keys(jobs: Mapping[str, str]) -> dict[JobId, SubmissionKey]:
    return {JobId.parse(job): SubmissionKey(key) for job, key in jobs.items()}


def strip_key(job_name: str) -> str:
    found = _KEYED.fullmatch(job_name)
    return found["name"] if found else job_name


def readable_name(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The name of a task's job, first what tells it from others: ``squeue`` shows eight letters by default.

    >>> readable_name("train", "manual__2026-11-21", "prepare.fit", 3)
    'prepare.fit.3.train.manual__2026-11-21'
    """
    return f"{_instance(task_id, map_index)}.{dag_id}.{run_id}"


def output_path(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The path of a task's output, from the job's working directory, without the job's number.

    >>> output_path("train", "manual__2026-11-21T10:00", "prepare.fit", 3)
    'airflow/train/manual__2026-11-21T10_00/prepare.fit.3'
    """
    parts = (dag_id, run_id, _instance(task_id, map_index))
    # A name that is too long for the file system fails the job. Its number makes a shortened one unique.
    return "/".join(["airflow", *(_ODD.sub("_", part)[:NAME_LIMIT] for part in parts)])


def _instance(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}.{map_index}"


#: Characters that need quotes in the name of a file, or make another folder of it.
_ODD = re.compile(r"[^A-Za-z0-9_.-]|^\.+")


#: Characters that prevent a lookup by name: squeue and sacct split names at commas, accounting turns " into `, and
#: sacct does so with ' in the query only.
_CHANGED = str.maketrans(dict.fromkeys(",'\"", "_"))


def _shorten(text: str, limit: int) -> str:
    """Cut to a number of bytes between visible characters; characters that a name cannot hold become _."""
    clean = "".join("_" if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in text)
    clean = clean.translate(_CHANGED)
    clean = unicodedata.normalize("NFC", clean)
    data = clean.encode()
    if len(data) <= limit:
        return clean
    kept = data[:limit].decode(errors="ignore")
    rest = clean[len(kept) :]
    # Keep letters with their accents, and emojis with their parts.
    while kept and rest and (unicodedata.combining(rest[0]) or "\u200d" in (rest[0], kept[-1]) or rest[0] == "\ufe0f"):
        kept, rest = kept[:-1], kept[-1] + rest
    return kept
