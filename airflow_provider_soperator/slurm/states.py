"""States of jobs and nodes, read from all of Slurm's notations.

A state is a base and any number of flags, compared as whole words: POWERED_DOWN is not DOWN. Unknown words are kept,
and do not affect known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache


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
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
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
    UPDATE_DB = "UPDATE_DB"


_COMPACT_JOB: dict[str, JobBase | JobFlag] = {
    "PD": JobBase.PENDING,
    "R": JobBase.RUNNING,
    "S": JobBase.SUSPENDED,
    "CD": JobBase.COMPLETED,
    "CA": JobBase.CANCELLED,
    "F": JobBase.FAILED,
    "TO": JobBase.TIMEOUT,
    "NF": JobBase.NODE_FAIL,
    "PR": JobBase.PREEMPTED,
    "BF": JobBase.BOOT_FAIL,
    "DL": JobBase.DEADLINE,
    "OOM": JobBase.OUT_OF_MEMORY,
    "CG": JobFlag.COMPLETING,
    "CF": JobFlag.CONFIGURING,
    "EX": JobFlag.EXPEDITING,
    "RQ": JobFlag.REQUEUED,
    "RF": JobFlag.REQUEUE_FED,
    "RH": JobFlag.REQUEUE_HOLD,
    "RS": JobFlag.RESIZING,
    "RD": JobFlag.RESV_DEL_HOLD,
    "RV": JobFlag.REVOKED,
    "SI": JobFlag.SIGNALING,
    "SE": JobFlag.SPECIAL_EXIT,
    "SO": JobFlag.STAGE_OUT,
    "ST": JobFlag.STOPPED,
    # Other words for the same states, from older versions and from slurmrestd.
    "COMPLETE": JobBase.COMPLETED,
    "OOM_KILLED": JobBase.OUT_OF_MEMORY,
    "REQUEUE": JobFlag.REQUEUED,
    "SPECIAL_EXIT_HOLD": JobFlag.SPECIAL_EXIT,
}
_JOB_WORDS: dict[str, JobBase | JobFlag] = {
    **_COMPACT_JOB,
    **{base.value: base for base in JobBase},
    **{flag.value: flag for flag in JobFlag},
}
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


@dataclass(frozen=True)
class JobState:
    """The state of a job. ``squeue`` shows a flag instead of the base, which is None then.

    >>> state = JobState.parse("CANCELLED by 1001")
    >>> state.is_finished, state.succeeded, state.cancelled_by
    (True, False, 1001)
    >>> str(JobState.parse(["COMPLETING", "FAILED"]))
    'FAILED+COMPLETING'
    """

    base: JobBase | None = None
    flags: frozenset[JobFlag] = frozenset()
    #: Unknown words, of a newer Slurm.
    unknown: frozenset[str] = frozenset()
    #: The id of the user who cancelled the job, from accounting.
    cancelled_by: int | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, said: str | Iterable[str]) -> JobState:
        """Read ``RUNNING``, ``CG``, ``CANCELLED by 1001``, ``CANCELLED+COMPLETING`` or a JSON list of words."""
        return _job_state(said) if isinstance(said, str) else _job_state("+".join(said))

    def __str__(self) -> str:
        words = [self.base.value] if self.base else []
        return "+".join([*words, *sorted(flag.value for flag in self.flags), *sorted(self.unknown)]) or "UNKNOWN"

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
    base: JobBase | None = None
    flags: set[JobFlag] = set()
    unknown: set[str] = set()
    for word in _words(said):
        known = _JOB_WORDS.get(word)
        if isinstance(known, JobFlag):
            flags.add(known)
        elif known is None or base not in (None, known):
            unknown.add(word)
        else:
            base = known
    return JobState(base, frozenset(flags), frozenset(unknown))


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
    DYNAMIC_FUTURE = "DYNAMIC_FUTURE"
    DYNAMIC_NORM = "DYNAMIC_NORM"
    EXTERNAL = "EXTERNAL"
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
    REBOOT_CANCELED = "REBOOT_CANCELED"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    RESERVED = "RESERVED"
    RESUME = "RESUME"
    UNDRAIN = "UNDRAIN"


#: Words for several states, or other names of one.
_NODE_ALIASES: dict[str, tuple[NodeBase | NodeFlag, ...]] = {
    "ALLOC": (NodeBase.ALLOCATED,),
    "MIX": (NodeBase.MIXED,),
    "FUTR": (NodeBase.FUTURE,),
    "UNK": (NodeBase.UNKNOWN,),
    "COMP": (NodeFlag.COMPLETING,),
    "DRAINED": (NodeBase.IDLE, NodeFlag.DRAIN),
    "DRAINING": (NodeFlag.DRAIN,),
    "DRNG": (NodeFlag.DRAIN,),
    "FAILED": (NodeBase.IDLE, NodeFlag.FAIL),
    "FAILING": (NodeFlag.FAIL,),
    "FAILG": (NodeFlag.FAIL,),
    "INVAL": (NodeFlag.INVALID_REG,),
    "INVALID": (NodeFlag.INVALID_REG,),
    "MAINT": (NodeFlag.MAINTENANCE,),
    "NO_RESPOND": (NodeFlag.NOT_RESPONDING,),
    "NORESP": (NodeFlag.NOT_RESPONDING,),
    "PLND": (NodeFlag.PLANNED,),
    "POW_DN": (NodeFlag.POWERING_DOWN,),
    "POW_UP": (NodeFlag.POWERING_UP,),
    "POWERED_DN": (NodeFlag.POWERED_DOWN,),
    # slurmrestd 0.0.45 names combinations of bits; an idle node that is off and is to power down looks "forced".
    "POWER_DOWN_ASAP": (NodeFlag.POWER_DOWN, NodeFlag.POWER_DRAIN),
    "POWER_DOWN_FORCE": (NodeFlag.POWER_DOWN,),
    "REBOOT": (NodeFlag.REBOOT_ISSUED,),
    "RES": (NodeFlag.RESERVED,),
    "RESV": (NodeFlag.RESERVED,),
    "RESM": (NodeFlag.RESUME,),
    "BLOCK": (NodeFlag.BLOCKED,),
}
#: Suffixes of ``sinfo``'s states.
_SUFFIXES = {
    "*": NodeFlag.NOT_RESPONDING,
    "~": NodeFlag.POWERED_DOWN,
    "#": NodeFlag.POWERING_UP,
    "!": NodeFlag.POWER_DOWN,
    "%": NodeFlag.POWERING_DOWN,
    "$": NodeFlag.MAINTENANCE,
    "@": NodeFlag.REBOOT_REQUESTED,
    "^": NodeFlag.REBOOT_ISSUED,
    "-": NodeFlag.PLANNED,
}
_NODE_WORDS: dict[str, tuple[NodeBase | NodeFlag, ...]] = {
    **_NODE_ALIASES,
    **{base.value: (base,) for base in NodeBase},
    **{flag.value: (flag,) for flag in NodeFlag},
}


@dataclass(frozen=True)
class NodeState:
    """The state of a node.

    >>> state = NodeState.parse("IDLE+CLOUD+POWERED_DOWN")
    >>> state.base is NodeBase.DOWN, state.has(NodeFlag.POWERED_DOWN)
    (False, True)
    >>> NodeState.parse("idle~").flags == {NodeFlag.POWERED_DOWN}
    True
    """

    base: NodeBase | None = None
    flags: frozenset[NodeFlag] = frozenset()
    #: Unknown words, of a newer Slurm.
    unknown: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, said: str | Iterable[str]) -> NodeState:
        """Read ``IDLE+CLOUD+POWERED_DOWN``, ``idle~``, ``drng*``, or a JSON list of words."""
        return _node_state(said) if isinstance(said, str) else _node_state("+".join(said))

    def has(self, *flags: NodeFlag) -> bool:
        """True if it has any of these flags."""
        return not self.flags.isdisjoint(flags)

    def __str__(self) -> str:
        words = [self.base.value] if self.base else []
        return "+".join([*words, *sorted(flag.value for flag in self.flags), *sorted(self.unknown)]) or "UNKNOWN"


UNKNOWN_NODE = NodeState()


@lru_cache(maxsize=4096)
def _node_state(said: str) -> NodeState:
    base: NodeBase | None = None
    flags: set[NodeFlag] = set()
    unknown: set[str] = set()
    for word in _words(said):
        bare = word.rstrip("".join(_SUFFIXES))
        flags.update(_SUFFIXES[suffix] for suffix in word[len(bare) :])
        meant = _NODE_WORDS.get(bare)
        if meant is None:
            unknown |= {bare} - {""}
            continue
        for part in meant:
            if isinstance(part, NodeFlag):
                flags.add(part)
            elif base in (None, part) or bare in _NODE_ALIASES:
                base = base or part
            else:
                unknown.add(bare)
    return NodeState(base, frozenset(flags), frozenset(unknown))


def _words(said: str) -> list[str]:
    return [word.strip().upper().replace(" ", "_") for word in said.split("+") if word.strip()]
