"""Base of all ways to make a cluster, and the plan that each of them shows before it changes anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from airflow_provider_soperator.provisioning.connections import Reached
from airflow_provider_soperator.provisioning.fields import SpecMistake

#: What may be left of an action that was agreed to and begun: what was not finished is made anew, and of a replacement
#: the end of the old one may be done.
_LEFT = {"create": ("create", "replace"), "replace": ("replace", "create")}


@dataclass(frozen=True)
class ProvisioningPlan:
    """Changes that a provisioner would make."""

    summary: str
    #: What becomes of each resource or object that does not stay as it is.
    changes: Mapping[str, str] = field(default_factory=dict)
    #: Whether there is a cluster already, or a part of one.
    exists: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.changes

    def write(self) -> dict[str, Any]:
        """For XCom."""
        return {"summary": self.summary, "changes": dict(self.changes), "exists": self.exists}

    def check_agreed(self, agreed: Any) -> None:
        """Raise ``SpecMistake`` if there is more in it than was agreed to.

        There may be less: what an earlier try has done is not done again.

        >>> ProvisioningPlan("1 to create", {"a": "create"}).check_agreed({"changes": {"a": "create", "b": "create"}})
        """
        if not isinstance(agreed, Mapping) or "changes" not in agreed:
            raise SpecMistake(f"approved_plan is {agreed!r}: give it what a task with plan_only=True has returned")
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
    """Makes one cluster in one way. Nothing changes before ``apply``; the end of the context leaves no plan behind."""

    #: The task that makes it.
    owner = ""

    @abstractmethod
    def plan(self, *, destroy: bool = False) -> ProvisioningPlan:
        """The changes that are needed; they are written to the log, too."""

    @abstractmethod
    def guard(self, allowed: Sequence[str]) -> None:
        """Refuse a plan by which something ends that is not ``allowed`` to."""

    @abstractmethod
    def apply(self) -> str:
        """Carry out the plan; what was done, in a few words."""

    @abstractmethod
    def interrupt(self) -> str:
        """The task is told to end: have the work end in good order, and say how it is left. For signal handlers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def reached(self) -> Reached:
        """Addresses of the cluster that was made, as far as they are known in this way."""
        return Reached()

    def is_begun_by(self, owner: str) -> bool:
        """True if an earlier try of a task has begun to make, or to destroy, the cluster."""
        return False

    def begin(self, owner: str) -> None:
        """Take note that a task begins, where its next try finds it."""
        self.owner = owner
