"""The tasks that an executor has accepted, and the news of their jobs: which end is told to Airflow.

A task has the same key in all legs of a try, such as those before and after a deferral; each leg has an external id of
its own, and a job. The end of a leg that another has followed is not told, as it would fail the task that has gone on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """What is known of a job."""

    ACCEPTED = "accepted"
    SUBMITTED = "submitted"
    STARTED = "started"


class NewsKind(Enum):
    """What has become of a task's job."""

    SUBMITTED = "submitted"
    WAITING = "waiting"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_WANTED = "not wanted"
    #: It never had a job.
    NOT_SUBMITTED = "not submitted"


@dataclass(frozen=True)
class News:
    """News of the job of one task, in words."""

    leg: str
    kind: NewsKind
    text: str = ""
    #: Of a failure: lines for the task's log, and where that is, below the folder of logs.
    lines: tuple[str, ...] = ()
    log_path: str = ""

    @property
    def is_end(self) -> bool:
        return self.kind not in (NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED)


@dataclass
class Books:
    """Accepted tasks by the external id of their leg.

    >>> books = Books()
    >>> books.accept("a", "task")
    >>> books.accept("b", "task")
    >>> books.end("a"), books.end("b"), books.end("b")
    (None, 'task', None)
    """

    _open: dict[str, tuple[Hashable, Phase]] = field(default_factory=dict)
    _newest: dict[Hashable, str] = field(default_factory=dict)

    def accept(self, leg: str, key: Hashable, phase: Phase = Phase.ACCEPTED) -> None:
        """Note a leg, which is the newest of its key from here on."""
        self._open[leg], self._newest[key] = (key, phase), leg

    def __contains__(self, leg: str) -> bool:
        return leg in self._open

    def move(self, leg: str, phase: Phase) -> None:
        """Note what has become of a job."""
        if leg in self._open:
            self._open[leg] = self._open[leg][0], phase

    def put_back(self, leg: str) -> None:
        """Note that a job waits, also if it was seen to start."""
        if leg in self._open and self._open[leg][1] is Phase.STARTED:
            self.move(leg, Phase.SUBMITTED)

    def key_of(self, leg: str) -> Hashable | None:
        """The key of a task whose newest leg this is; None of all others."""
        key, _ = self._open.get(leg, (None, None))
        return key if self._newest.get(key) == leg else None

    def end(self, leg: str) -> Hashable | None:
        """Forget a leg; returns the key of its task if Airflow is to know of this end."""
        key = self.key_of(leg)
        self._open.pop(leg, None)
        if key is not None:
            del self._newest[key]
        return key

    @property
    def unstarted(self) -> list[str]:
        """The legs whose jobs have not started, so that no task can tell its job that it is not wanted."""
        return [leg for leg, (_, phase) in self._open.items() if phase is not Phase.STARTED]

    @property
    def unsubmitted(self) -> int:
        """The number of tasks that Slurm does not have yet."""
        return sum(phase is Phase.ACCEPTED for _, phase in self._open.values())
