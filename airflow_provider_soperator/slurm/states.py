"""States of jobs and nodes, in the words of Slurm's commands and of slurmrestd.

A state is a base and any number of flags, compared as whole words: POWERED_DOWN is not DOWN. Unknown words are kept,
and do not affect known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Generic, TypeVar

B = TypeVar("B", bound=Enum)
F = TypeVar("F", bound=Enum)


class JobBase(str, Enum):
    """The base state of a job, apart from its flags."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class JobFlag(str, Enum):
    """Flags of a job besides its base state."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"
    POWER_UP_NODE = "POWER_UP_NODE"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"


_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]+)", re.IGNORECASE)

_GOING = frozenset({JobBase.RUNNING, JobBase.SUSPENDED})
#: With one of these a job must be released.
_HELD = frozenset({JobFlag.REQUEUE_HOLD, JobFlag.SPECIAL_EXIT, JobFlag.RESV_DEL_HOLD})
#: With one of these a job goes back into the queue, in any base state.
_RETURNING = _HELD | {JobFlag.REQUEUED, JobFlag.REQUEUE_FED}
#: With one of these a job holds its nodes.
_HOLDING = frozenset(
    {
        JobFlag.COMPLETING,
        JobFlag.CONFIGURING,
        JobFlag.EXPEDITING,
        JobFlag.RESIZING,
        JobFlag.SIGNALING,
        JobFlag.STAGE_OUT,
        JobFlag.STOPPED,
        JobFlag.POWER_UP_NODE,
    }
)
_UNFINISHED = _RETURNING | _HOLDING
#: With one of these the nodes of a job do not run it yet.
_STARTING = frozenset({JobFlag.CONFIGURING, JobFlag.POWER_UP_NODE})


@dataclass(frozen=True)
class _State(Generic[B, F]):
    base: B | None = None
    flags: frozenset[F] = frozenset()
    #: Unknown words, of a newer Slurm.
    unknown: frozenset[str] = frozenset()

    def has(self, *flags: F) -> bool:
        """True if it has any of these flags."""
        return not self.flags.isdisjoint(flags)

    def __str__(self) -> str:
        words = [self.base.value] if self.base else []
        return "+".join([*words, *sorted(flag.value for flag in self.flags), *sorted(self.unknown)]) or "UNKNOWN"


@dataclass(frozen=True)
class JobState(_State[JobBase, JobFlag]):
    """The state of a job. ``squeue`` shows a flag instead of the base, which is None then.

    >>> state = JobState.parse("CANCELLED by 1001")
    >>> state.is_finished, state.succeeded, state.cancelled_by
    (True, False, 1001)
    >>> str(JobState.parse(["COMPLETING", "FAILED"]))
    'FAILED+COMPLETING'
    """

    #: The id of the user who cancelled the job, from accounting.
    cancelled_by: int | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, said: str | Iterable[str]) -> JobState:
        """Read ``RUNNING``, ``CANCELLED by 1001``, ``CANCELLED+COMPLETING`` or a JSON list of words."""
        return _job_state(said) if isinstance(said, str) else _job_state("+".join(said))

    @property
    def is_finished(self) -> bool:
        """True if the job has ended, has left its nodes, and will not be requeued."""
        if self.flags & _UNFINISHED:
            return False
        if JobFlag.REVOKED in self.flags:
            return True
        return self.base not in {None, JobBase.PENDING, *_GOING}

    @property
    def is_pending(self) -> bool:
        """True if the job waits in the queue, or is being requeued."""
        if self.is_active or self.is_finished:
            return False
        return self.base is JobBase.PENDING or bool(self.flags & _RETURNING)

    @property
    def is_active(self) -> bool:
        """True if the job holds nodes: it runs, starts or completes."""
        # A revoked job belongs to another cluster of the federation.
        going = self.base in _GOING and JobFlag.REVOKED not in self.flags
        return going or bool(self.flags & _HOLDING)

    @property
    def is_configuring(self) -> bool:
        """True if the job has nodes that boot, or run their prolog."""
        return bool(self.flags & _STARTING)

    @property
    def is_held(self) -> bool:
        """True if the job must be released. (A hold by hand is a pending job's *reason*, not a state.)"""
        return bool(self.flags & _HELD)

    @property
    def succeeded(self) -> bool:
        return self.is_finished and self.base is JobBase.COMPLETED


UNKNOWN_JOB = JobState()


@lru_cache(maxsize=1024)
def _job_state(said: str) -> JobState:
    by = _CANCELLED_BY.fullmatch(said.strip())
    if by:
        return JobState(JobBase.CANCELLED, cancelled_by=int(by[1]))
    return JobState(*_read(said, JobBase, JobFlag))


class NodeBase(str, Enum):
    """The base state of a node, apart from its flags."""

    UNKNOWN = "UNKNOWN"
    DOWN = "DOWN"
    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    MIXED = "MIXED"
    FUTURE = "FUTURE"
    ERROR = "ERROR"


class NodeFlag(str, Enum):
    """Flags of a node besides its base state."""

    BLOCKED = "BLOCKED"
    CLOUD = "CLOUD"
    COMPLETING = "COMPLETING"
    DRAIN = "DRAIN"
    FAIL = "FAIL"
    INVALID_REG = "INVALID_REG"
    MAINTENANCE = "MAINTENANCE"
    NOT_RESPONDING = "NOT_RESPONDING"
    PLANNED = "PLANNED"
    POWER_DOWN = "POWER_DOWN"
    POWER_DRAIN = "POWER_DRAIN"
    POWER_UP = "POWER_UP"
    POWERED_DOWN = "POWERED_DOWN"
    POWERING_DOWN = "POWERING_DOWN"
    POWERING_UP = "POWERING_UP"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    RESERVED = "RESERVED"


@dataclass(frozen=True)
class NodeState(_State[NodeBase, NodeFlag]):
    """The state of a node.

    >>> state = NodeState.parse("IDLE+CLOUD+POWERED_DOWN")
    >>> state.base is NodeBase.DOWN, state.has(NodeFlag.POWERED_DOWN)
    (False, True)
    """

    @classmethod
    def parse(cls, said: str | Iterable[str]) -> NodeState:
        """Read ``IDLE+CLOUD+POWERED_DOWN`` or a JSON list of words."""
        return _node_state(said) if isinstance(said, str) else _node_state("+".join(said))


UNKNOWN_NODE = NodeState()


@lru_cache(maxsize=4096)
def _node_state(said: str) -> NodeState:
    for words, meant in _COMBINATIONS.items():
        said = said.replace(words, meant)
    return NodeState(*_read(said, NodeBase, NodeFlag))


#: slurmrestd 0.0.45 names combinations of bits; an idle node that is off and is to power down looks "forced".
_COMBINATIONS = {"POWER_DOWN_ASAP": "POWER_DOWN+POWER_DRAIN", "POWER_DOWN_FORCE": "POWER_DOWN"}


def _read(said: str, bases: type[B], flags: type[F]) -> tuple[B | None, frozenset[F], frozenset[str]]:
    base: B | None = None
    found: set[F] = set()
    unknown: set[str] = set()
    for word in filter(None, (word.strip().upper() for word in said.split("+"))):
        if word in flags.__members__:
            found.add(flags[word])
        elif word in bases.__members__ and base in (None, bases[word]):
            base = bases[word]
        else:
            unknown.add(word)
    return base, frozenset(found), frozenset(unknown)
