"""Base of all provisioners, and the plan that they make before any change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from airflow_provider_soperator.provisioning.connections import Reached
from airflow_provider_soperator.provisioning.fields import SpecMistake

#: Actions that may be left of an approved action that was interrupted: an unfinished resource is replaced, and a
#: replacement may already have deleted the old one.
_LEFT = {"create": ("create", "replace"), "replace": ("replace", "create")}


@dataclass(frozen=True)
class ProvisioningPlan:
    """Changes that a provisioner would make."""

    summary: str
    #: The action on each resource or object that changes.
    changes: Mapping[str, str] = field(default_factory=dict)
    #: The cluster, or a part of it, exists already.
    exists: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.changes

    def write(self) -> dict[str, Any]:
        """The plan as JSON, for XCom."""
        return {"summary": self.summary, "changes": dict(self.changes), "exists": self.exists}

    def check_agreed(self, agreed: Any) -> None:
        """Raise ``SpecMistake`` if the plan has changes that were not approved.

        It may have fewer: an earlier try may have made some.

        >>> ProvisioningPlan("1 to create", {"a": "create"}).check_agreed({"changes": {"a": "create", "b": "create"}})
        """
        if not isinstance(agreed, Mapping) or "changes" not in agreed:
            raise SpecMistake(f"approved_plan must be the result of a task with plan_only=True, got {agreed!r}")
        known = agreed["changes"]
        news = [
            f"{address} ({action})"
            for address, action in self.changes.items()
            if action not in _LEFT.get(known.get(address), (known.get(address),))
        ]
        if news:
            raise SpecMistake(
                f"the plan has changed since it was approved: {', '.join(news)}; plan again, and have that approved"
            )


class Provisioner(AbstractContextManager["Provisioner"], ABC):
    """Makes one cluster. Nothing changes before ``apply``; leaving the context deletes the plan."""

    #: The task that makes the cluster.
    owner = ""

    @abstractmethod
    def plan(self, *, destroy: bool = False) -> ProvisioningPlan:
        """Determine the required changes, and log them."""

    @abstractmethod
    def guard(self, allowed: Sequence[str]) -> None:
        """Raise if the plan destroys anything that is not ``allowed``."""

    @abstractmethod
    def apply(self) -> str:
        """Carry out the plan, and return a summary."""

    @abstractmethod
    def interrupt(self) -> str:
        """Stop in good order because the task is killed, and describe the state. For signal handlers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def reached(self) -> Reached:
        """Addresses of the cluster, as far as known."""
        return Reached()

    def is_begun_by(self, owner: str) -> bool:
        """True if an earlier try of a task has begun to make or destroy the cluster."""
        return False

    def begin(self, owner: str) -> None:
        """Note that a task begins, where its next try finds it."""
        self.owner = owner
