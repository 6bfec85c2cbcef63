"""Plan of Terraform, from ``terraform show -json``: read, logged and checked before anything is changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.failures import DestructionRefused

#: Terraform's signs for actions, in the order of our output.
_SIGNS = {"delete": "-", "replace": "-/+", "forget": ".", "create": "+", "update": "~", "read": "<="}
_REASONS = {
    "replace_because_tainted": "its creation was not finished",
    "replace_because_cannot_update": "it cannot be changed in place",
    "replace_by_request": "its replacement was requested",
    "replace_by_triggers": "a resource in its replace_triggered_by changes",
    "delete_because_no_resource_config": "it is no longer in the recipe",
    "delete_because_no_module": "its module is no longer in the recipe",
    "delete_because_wrong_repetition": "the recipe no longer uses the same count or for_each",
    "delete_because_count_index": "its index is beyond the count in the recipe",
    "delete_because_each_key": "its key is no longer in for_each of the recipe",
    "delete_because_no_move_target": "it was moved to an address that does not exist",
}


@dataclass(frozen=True)
class ResourceChange:
    """Change of one resource."""

    address: str
    action: str
    #: The reason of a replacement or deletion; empty if Terraform gives none.
    reason: str = ""
    #: The attributes that force a replacement.
    replace_paths: tuple[str, ...] = ()
    previous_address: str = ""
    is_import: bool = False

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ResourceChange:
        change = document["change"]
        actions = change["actions"]
        said = document.get("action_reason", "")
        return cls(
            address=document["address"],
            # A creation with something else: delete or forget.
            action="replace" if len(actions) > 1 and "create" in actions else "/".join(actions),
            reason=_REASONS.get(said, said.replace("_", " ")),
            replace_paths=tuple(_path(path) for path in change.get("replace_paths", ())),
            previous_address=document.get("previous_address", ""),
            is_import="importing" in change,
        )

    @property
    def why(self) -> str:
        paths = f" ({', '.join(self.replace_paths)})" if self.replace_paths else ""
        return f"{self.reason}{paths}".strip()

    def __str__(self) -> str:
        sign = _SIGNS.get(self.action, self.action)
        notes = [self.why, "imported" if self.is_import else ""]
        notes.append(f"it was {self.previous_address}" if self.previous_address else "")
        told = "; ".join(filter(None, notes))
        return f"{sign:>3} {self.address}" + (f"   {told}" if told else "")


@dataclass(frozen=True)
class TerraformPlan:
    """All changes that Terraform would make."""

    changes: tuple[ResourceChange, ...]
    #: Changes by others since Terraform's last refresh.
    drift: tuple[ResourceChange, ...] = ()
    outputs: tuple[str, ...] = ()
    path: Path | None = None
    digest: str = ""

    @classmethod
    def read(cls, document: Mapping[str, Any], *, path: Path | None = None, digest: str = "") -> TerraformPlan:
        """A plan from ``terraform show -json PLAN``."""
        drift = map(ResourceChange.read, document.get("resource_drift", ()))
        outputs = document.get("output_changes", {}).items()
        return cls(
            changes=tuple(map(ResourceChange.read, document.get("resource_changes", ()))),
            drift=tuple(one for one in drift if one.action != "no-op"),
            outputs=tuple(name for name, one in outputs if one["actions"] != ["no-op"]),
            path=path,
            digest=digest,
        )

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do. Reads do not count: the next plan repeats them."""
        return not self.outputs and all(
            one.action in ("no-op", "read") and not one.is_import and not one.previous_address for one in self.changes
        )

    @property
    def summary(self) -> str:
        """The numbers of changes in a few words, destructive ones first."""
        counted = Counter(one.action for one in self.changes)
        told = [f"{counted[one]} to {'destroy' if one == 'delete' else one}" for one in _SIGNS if counted[one]]

        imported = sum(one.is_import for one in self.changes)
        told += [f"{imported} to import"] if imported else []
        if not told and self.outputs:
            return f"only outputs change: {', '.join(self.outputs)}"
        return ", ".join(told) or "nothing to do"

    def lines(self) -> Iterator[str]:
        yield f"Plan: {self.summary}."
        for action in _SIGNS:
            yield from (str(one) for one in self.changes if one.action == action)
        if self.drift:
            yield "Changed by others since Terraform's last refresh:"
            yield from map(str, self.drift)

    def refuse_destruction(self, allowed: Sequence[str] = (), *, unfinished: bool = False) -> None:
        """Raise ``DestructionRefused`` if the plan destroys a resource whose address matches none of ``allowed``.

        A pattern is an address, in which ``*`` stands for any text; without an index it matches all instances.

        With ``unfinished``, tainted resources may be replaced: this is how an interrupted creation continues.
        """
        refused = []
        for one in self.changes:
            # Its creation was not finished, or it was marked so (``terraform taint``).
            is_tainted = one.reason == _REASONS["replace_because_tainted"]
            is_destroyed = one.action in ("delete", "replace") and not (unfinished and is_tainted)
            if is_destroyed and not any(_matches(pattern, one.address) for pattern in allowed):
                what = "replaced" if one.action == "replace" else "destroyed"
                refused.append(f"{one.address} would be {what}" + (f" because {one.why}" if one.why else ""))
        if refused:
            raise DestructionRefused(f"rejected, nothing was changed: {'; '.join(refused)}")


def _matches(pattern: str, address: str) -> bool:
    literal = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(rf"{literal}(\[[^\]]*\])?", address, re.DOTALL) is not None


def _path(steps: Iterable[str | int]) -> str:
    """The path of an attribute in Terraform's notation: ``boot_disk[0].type``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
