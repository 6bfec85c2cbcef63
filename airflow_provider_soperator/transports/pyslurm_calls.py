"""Which requests pyslurm answers, and how its answers are read.

Only those are here for which pyslurm 25.11 is exact; docs/native.md lists what it leaves out or alters of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import singledispatch
from typing import Any, Generic, TypeVar

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.records import Partition
from airflow_provider_soperator.slurm.requests import (
    CommentNodes,
    Drain,
    ListPartitions,
    PowerDown,
    PowerUp,
    Request,
    ResumeNodes,
    Undrain,
)
from airflow_provider_soperator.slurm.times import Duration, NoDuration

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """A function of ``pyslurm_program``, what it is given, and what its answer means."""

    function: str
    arguments: dict[str, str]
    read: Callable[[Any], T]


@singledispatch
def call_for(request: Request[Any]) -> Call[Any] | None:
    """How pyslurm is asked; None if the request is left to Slurm's commands."""
    return None


@call_for.register
def _(request: ListPartitions) -> Call[tuple[Partition, ...]]:
    return Call("partitions", {}, lambda answer: tuple(map(_partition, answer)))


@call_for.register
def _(request: PowerUp) -> Call[None]:
    return _update(request, request.names, state="POWER_UP")


@call_for.register
def _(request: PowerDown) -> Call[None]:
    reason = {"reason": request.reason} if request.reason else {}
    return _update(request, request.names, state=request.mode.value.upper(), **reason)


@call_for.register
def _(request: Drain) -> Call[None]:
    return _update(request, request.names, state="DRAIN", reason=request.reason)


@call_for.register
def _(request: Undrain) -> Call[None]:
    return _update(request, request.names, state="UNDRAIN")


@call_for.register
def _(request: ResumeNodes) -> Call[None]:
    return _update(request, request.names, state="RESUME")


@call_for.register
def _(request: CommentNodes) -> Call[None] | None:
    # Of an empty text pyslurm makes none, and the node would keep its comment.
    return _update(request, request.names, comment=request.comment) if request.comment else None


def _update(request: Request[None], names: tuple[str, ...], **changes: str) -> Call[None]:
    # Refuses what cannot be said, as it does on every other way.
    request.command()
    return Call("update_nodes", {"names": hostlist.fold(names), **changes}, lambda answer: None)


def _partition(said: dict[str, Any]) -> Partition:
    return Partition(
        name=said["name"],
        state=said["state"],
        is_default=said["is_default"],
        is_hidden=said["is_hidden"],
        nodelist=said["nodes"] or "",
        total_nodes=said["total_nodes"],
        max_time=_minutes(said["max_time"]),
        default_time=_minutes(said["default_time"]),
        priority_tier=said["priority_tier"] or 0,
    )


def _minutes(said: int | str | None) -> Duration:
    if said is None:
        return NoDuration.UNKNOWN
    return timedelta(minutes=said) if isinstance(said, int) else NoDuration(said)
