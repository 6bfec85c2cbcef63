"""The key of a submission, by which a job that has been submitted is found again: a suffix of its name.

The name is the one thing that the queue, accounting and every client of Slurm show, and that nobody else gives a
meaning to (accounting keeps no comment by default). slurmctld takes 1024 bytes of it, but accounting's column has 255,
and scripts put it into file names (`--output=%x-%j.out`), which have 255 as well; so names stay well below that.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from dataclasses import dataclass

#: Bytes of a whole job name.
NAME_LIMIT = 200

#: What is between a name and its key. A user's own name can hardly end like this.
MARK = ".af-"
_LENGTH = 12
_KEYED = re.compile(rf"(?P<name>.*){re.escape(MARK)}(?P<key>[a-z2-7]{{{_LENGTH}}})", re.DOTALL)


@dataclass(frozen=True)
class SubmissionKey:
    """Twelve letters that stand for one submission of one task.

    They are the first 60 bits of a SHA-256, in lower-case base32: among a million submissions that a cluster
    remembers, the probability that any two share a key is about 4 in 10 million (n²/2 / 2^60), and a lookup of one
    key among them goes wrong with 1 in 10^12.

    >>> key = SubmissionKey.derive("train", "manual__2026-11-21", "fit", -1, "1")
    >>> key.name("train.fit")
    'train.fit.af-q6befiawjvkz'
    >>> key_of("train.fit.af-q6befiawjvkz") == key
    True
    """

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"[a-z2-7]{{{_LENGTH}}}", self.text):
            raise ValueError(f"{self.text!r} is no submission key")

    @classmethod
    def derive(cls, dag_id: str, run_id: str, task_id: str, map_index: int, attempt_group: str | int) -> SubmissionKey:
        """The key of a task's submission; tries that go on with each other's job have one `attempt_group`."""
        digest = hashlib.sha256()
        for part in (dag_id, run_id, task_id, str(map_index), str(attempt_group)):
            data = part.encode("utf-8", "surrogatepass")
            # With its length, so that no two lists of parts look alike.
            digest.update(len(data).to_bytes(8, "big") + data)
        return cls(base64.b32encode(digest.digest()).decode()[:_LENGTH].lower())

    @property
    def suffix(self) -> str:
        return MARK + self.text

    def name(self, readable: str) -> str:
        """A job name that ends in this key, with as much of a readable beginning as there is room for."""
        return _shorten(strip_key(readable), NAME_LIMIT - len(self.suffix)) + self.suffix

    def __str__(self) -> str:
        return self.text


def key_of(job_name: str) -> SubmissionKey | None:
    """The key that a job's name ends in, if it has one.

    >>> key_of("my-own-job") is None
    True
    """
    found = _KEYED.fullmatch(job_name)
    return SubmissionKey(found["key"]) if found else None


def strip_key(job_name: str) -> str:
    """The name without its key.

    >>> strip_key("train.fit.af-q6befiawjvkz")
    'train.fit'
    """
    found = _KEYED.fullmatch(job_name)
    return found["name"] if found else job_name


def readable_name(dag_id: str, task_id: str, map_index: int = -1) -> str:
    """The beginning of a job's name, when the user gives none.

    >>> readable_name("train", "prepare.fit", 3)
    'train.prepare.fit.3'
    """
    return f"{dag_id}.{task_id}" + (f".{map_index}" if map_index >= 0 else "")


#: What squeue and sacct do not find by name: a comma ends a name they are asked for, accounting turns " into `, and
#: sacct does so with ' in the question alone.
_CHANGED = str.maketrans(dict.fromkeys(",'\"", "_"))


def _shorten(text: str, limit: int) -> str:
    """Cut to a number of bytes, between whole characters as people see them; what no name can hold becomes _."""
    clean = "".join("_" if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in text)
    clean = clean.translate(_CHANGED)
    clean = unicodedata.normalize("NFC", clean)
    data = clean.encode()
    if len(data) <= limit:
        return clean
    kept = data[:limit].decode(errors="ignore")
    rest = clean[len(kept) :]
    # A letter does not lose its accents, nor an emoji its parts.
    while kept and rest and (unicodedata.combining(rest[0]) or "\u200d" in (rest[0], kept[-1]) or rest[0] == "\ufe0f"):
        kept, rest = kept[:-1], kept[-1] + rest
    return kept
