"""What making a cluster would change: shown, agreed to, and held against what is about to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.provisioning.errors import SpecMistake

#: What may be left of an action that was agreed to and begun: what was not finished is made anew, and of a replacement
#: the end of the old one may be done.
_LEFT = {"create": ("create", "replace"), "replace": ("replace", "create")}


@dataclass(frozen=True)
class Planned:
    """A plan, whichever way it was made."""

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

        >>> Planned("1 to create", {"a": "create"}).check_agreed({"changes": {"a": "create", "b": "create"}})
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
