"""Plan of Terraform, from ``terraform show -json``: read, told and refused before anything is done."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.failures import DestructionRefused

#: What Terraform calls an action, or a pair of them.
_ACTIONS = {
    ("no-op",): "no-op",
    ("create",): "create",
    ("read",): "read",
    ("update",): "update",
    ("delete",): "delete",
    ("forget",): "forget",
    ("delete", "create"): "replace",
    ("create", "delete"): "replace",
    ("create", "forget"): "replace",
}
DESTRUCTIVE = ("delete", "replace")
#: What is told first.
_ORDER = ("delete", "replace", "forget", "create", "update", "read")
_SIGNS = {"delete": "-", "replace": "-/+", "forget": ".", "create": "+", "update": "~", "read": "<="}
_IN_SUMMARY = {"delete": "destroy"}

_REASONS = {
    "replace_because_tainted": "it was not finished when it was made",
    "replace_because_cannot_update": "it cannot be changed in place",
    "replace_by_request": "its replacement was asked for",
    "replace_by_triggers": "what it follows (replace_triggered_by) changes",
    "delete_because_no_resource_config": "the recipe does not have it any more",
    "delete_because_no_module": "the recipe does not have its module any more",
    "delete_because_wrong_repetition": "the recipe repeats it in another way",
    "delete_because_count_index": "the recipe has fewer of it",
    "delete_because_each_key": "the recipe has none of this name any more",
    "delete_because_no_move_target": "it was moved to what is not there",
}


@dataclass(frozen=True)
class ResourceChange:
    """Change of one resource."""

    address: str
    action: str
    #: Why, of a replacement or a deletion; empty where Terraform gives no reason.
    reason: str = ""
    #: The attributes whose change makes it a replacement.
    replace_paths: tuple[str, ...] = ()
    previous_address: str = ""
    is_import: bool = False
    #: Whether it was begun and never finished, or marked so (``terraform taint``).
    is_tainted: bool = False

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ResourceChange:
        """From an entry of ``resource_changes``."""
        change = document["change"]
        said = document.get("action_reason", "")
        return cls(
            address=document["address"],
            action=_ACTIONS.get(tuple(change["actions"]), "/".join(change["actions"])),
            reason=_REASONS.get(said, said.replace("_", " ")),
            replace_paths=tuple(_path(path) for path in change.get("replace_paths", ())),
            previous_address=document.get("previous_address", ""),
            is_import="importing" in change,
            is_tainted=said == "replace_because_tainted",
        )

    @property
    def is_destructive(self) -> bool:
        """True if the resource that is there ends."""
        return self.action in DESTRUCTIVE

    @property
    def why(self) -> str:
        """The reason in words."""
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
    """All changes that Terraform would make.

    >>> document = {"resource_changes": [{"address": "a.b", "change": {"actions": ["create"]}}]}
    >>> print(TerraformPlan.read(document).summary)
    1 to create
    """

    changes: tuple[ResourceChange, ...]
    #: What was changed by others since Terraform last looked.
    drift: tuple[ResourceChange, ...] = ()
    #: The names of outputs that change.
    outputs: tuple[str, ...] = ()
    is_destroy: bool = False
    #: The file that holds the plan, and what it is known by.
    path: Path | None = None
    digest: str = ""

    @classmethod
    def read(
        cls, document: Mapping[str, Any], *, is_destroy: bool = False, path: Path | None = None, digest: str = ""
    ) -> TerraformPlan:
        """From ``terraform show -json PLAN``."""
        drift = (ResourceChange.read(one) for one in document.get("resource_drift", ()))
        return cls(
            changes=tuple(ResourceChange.read(one) for one in document.get("resource_changes", ())),
            drift=tuple(one for one in drift if one.action != "no-op"),
            outputs=tuple(
                name for name, one in document.get("output_changes", {}).items() if one["actions"] != ["no-op"]
            ),
            is_destroy=is_destroy,
            path=path,
            digest=digest,
        )

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do. What is only read is read by the next plan too."""
        return not self.outputs and all(
            one.action in ("no-op", "read") and not one.is_import and not one.previous_address for one in self.changes
        )

    @property
    def destructive(self) -> tuple[ResourceChange, ...]:
        """Changes that destroy or replace a resource."""
        return tuple(one for one in self.changes if one.is_destructive)

    def by_action(self, *actions: str) -> tuple[ResourceChange, ...]:
        """The changes of one kind or several: create, update, replace, delete, read, forget or no-op."""
        return tuple(one for one in self.changes if one.action in actions)

    @property
    def summary(self) -> str:
        """In a few words, what ends first."""
        counted = Counter(one.action for one in self.changes)
        told = [f"{counted[action]} to {_IN_SUMMARY.get(action, action)}" for action in _ORDER if counted[action]]
        imported = sum(one.is_import for one in self.changes)
        told += [f"{imported} to import"] if imported else []
        if not told and self.outputs:
            return f"only outputs change: {', '.join(self.outputs)}"
        return ", ".join(told) or "nothing to do"

    def lines(self) -> Iterator[str]:
        """For a log."""
        yield f"Plan: {self.summary}."
        for action in _ORDER:
            yield from map(str, self.by_action(action))
        if self.drift:
            yield "Changed by others since Terraform last looked:"
            yield from map(str, self.drift)

    def refuse_destruction(self, allowed: Sequence[str] = (), *, unfinished: bool = False) -> None:
        """Raise ``DestructionRefused`` if something ends whose address none of ``allowed`` matches.

        A pattern is an address, in which ``*`` stands for any text; without an index it means all instances.

        With ``unfinished``, what was never finished may be replaced: so goes on what was interrupted.
        """
        refused = [
            one
            for one in self.destructive
            if not (unfinished and one.is_tainted) and not any(_matches(pattern, one.address) for pattern in allowed)
        ]
        if not refused:
            return
        told = "; ".join(
            f"{one.address} would be {'replaced' if one.action == 'replace' else 'destroyed'}"
            + (f" because {one.why}" if one.why else "")
            for one in refused
        )
        raise DestructionRefused(f"refused before anything was changed: {told}")


def _matches(pattern: str, address: str) -> bool:
    literal = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(rf"{literal}(\[[^\]]*\])?", address, re.DOTALL) is not None


def _path(steps: Iterable[str | int]) -> str:
    """An attribute's place, as people write it: ``boot_disk[0].type``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
