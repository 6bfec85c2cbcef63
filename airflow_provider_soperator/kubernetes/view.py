"""Pods, and the machines under them, as Kubernetes says they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Condition:
    """A condition of a Kubernetes Node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True)
class Host:
    """The machine that a Pod is on."""

    name: str
    created: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    is_leaving: bool = False
    #: The Pod says that it is there, and the API has no such Node any more.
    is_gone: bool = False


@dataclass(frozen=True)
class Pod:
    """One of Slurm's nodes as Kubernetes has it."""

    phase: str
    is_ready: bool
    #: None while it is on none.
    host: Host | None = None
    #: Why a container does not run, such as ``CrashLoopBackOff``; or why the Pod is not placed.
    trouble: str = ""
    is_leaving: bool = False
    since: datetime | None = None


@dataclass(frozen=True)
class KubernetesView:
    """All Pods of a namespace, by their names, which are those of Slurm's nodes."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
