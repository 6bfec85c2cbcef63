"""Plan of Terraform, from ``terraform show -json``: read, logged and checked before anything is changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.failures import DESTRUCTION_REFUSED

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
DEPOSED = " (deposed object "
#: Types of resources that hold nothing: a replacement runs their provisioners again, or writes a file on the worker.
_HOLD_NOTHING = re.compile(r"terraform_data|null_resource|(local|random|time)_\w+")
_ON_WORKER = "local_"
#: Of an instance, in an address.
_INDEX = re.compile(r'\[(\d+|"([^"\\]|\\.)*")\]')


@dataclass(frozen=True)
class ResourceChange:
    """Change of one resource."""

    address: str
    action: str
    type: str = ""
    #: The reason of a replacement or deletion; empty if Terraform gives none.
    reason: str = ""
    #: The attributes that force a replacement.
    replace_paths: tuple[str, ...] = ()
    previous_address: str = ""
    #: The key of an object that an interrupted replacement has left beside the one at this address.
    deposed: str = ""
    is_import: bool = False
    #: Each plan has this change: it is forced by a value that Terraform knows only when it applies, such as the time,
    #: or it writes a file on the worker. The cluster stays as it is.
    is_repeated: bool = False
    before: Mapping[str, Any] = field(default_factory=dict, repr=False)
    after: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ResourceChange:
        change, kind = document["change"], document.get("type", "")
        said, actions = document.get("action_reason", ""), change["actions"]
        # A creation with something else: delete or forget.
        action = "replace" if len(actions) > 1 and "create" in actions else "/".join(actions)
        forcing, unknown = change.get("replace_paths", ()), change.get("after_unknown") or {}
        is_untold = any(_is_unknown(unknown.get(path[0])) for path in forcing)
        return cls(
            address=document["address"],
            action=action,
            type=kind,
            reason=_REASONS.get(said, said.replace("_", " ")),
            replace_paths=tuple(map(_path, forcing)),
            previous_address=document.get("previous_address", ""),
            deposed=document.get("deposed", ""),
            is_import="importing" in change,
            is_repeated=_HOLD_NOTHING.fullmatch(kind) is not None
            and ((action == "replace" and is_untold) or (kind.startswith(_ON_WORKER) and action != "delete")),
            before=change.get("before") or {},
            after=change.get("after") or {},
        )

    @property
    def label(self) -> str:
        """Its address, in Terraform's words for what is no longer there by that address."""
        return f"{self.address}{DEPOSED}{self.deposed})" if self.deposed else self.address

    @property
    def address_in_recipe(self) -> str:
        """Its address without indexes, which is that of all its instances.

        >>> ResourceChange('module.m["a.b"].terraform_data.it[0]', "delete").address_in_recipe
        'module.m.terraform_data.it'
        """
        return _INDEX.sub("", self.address)

    @property
    def is_tainted(self) -> bool:
        """True if its creation was not finished, or it was marked so (``terraform taint``)."""
        return self.reason == _REASONS["replace_because_tainted"]

    @property
    def holds_nothing(self) -> bool:
        return _HOLD_NOTHING.fullmatch(self.type) is not None

    @property
    def is_loss(self) -> bool:
        """True if what it holds is lost: data, nodes with their jobs, a release with all it has installed."""
        return self.action in ("delete", "replace") and not self.holds_nothing

    def is_among(self, patterns: Iterable[str]) -> bool:
        """True if its address matches a pattern: ``*`` stands for any text; without an index it matches all instances.

        >>> ResourceChange('m.group["a-0"]', "update").is_among(["m.gr*"])
        True
        """
        literals = (".*".join(map(re.escape, one.split("*"))) for one in patterns)
        return any(re.fullmatch(rf"{one}(\[[^\]]*\])?", self.address, re.DOTALL) for one in literals)

    @property
    def why(self) -> str:
        paths = f" ({', '.join(self.replace_paths)})" if self.replace_paths else ""
        return f"{self.reason}{paths}".strip()

    def __str__(self) -> str:
        was = f"it was {self.previous_address}" * bool(self.previous_address)
        told = "; ".join(filter(None, (self.why, "imported" * self.is_import, was)))
        return f"{_SIGNS.get(self.action, self.action):>3} {self.label}" + (f"   {told}" if told else "")


@dataclass(frozen=True)
class TerraformPlan:
    """All changes that Terraform would make."""

    changes: tuple[ResourceChange, ...]
    #: Changes by others since Terraform's last refresh.
    drift: tuple[ResourceChange, ...] = ()
    outputs: tuple[str, ...] = ()
    #: By address of what is there: all on which it depends, also through others, by addresses without indexes.
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    path: Path | None = None
    #: The folder of the recipe, for commands of a person.
    root: Path | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any], *, path: Path | None = None, root: Path | None = None) -> TerraformPlan:
        """A plan from ``terraform show -json PLAN``."""
        drift = map(ResourceChange.read, document.get("resource_drift", ()))
        outputs = document.get("output_changes", {}).items()
        there = resources_of(document.get("prior_state", {}))
        return cls(
            changes=tuple(map(ResourceChange.read, document.get("resource_changes", ()))),
            drift=tuple(one for one in drift if one.action != "no-op"),
            outputs=tuple(name for name, one in outputs if one["actions"] != ["no-op"]),
            needs={one["address"]: one.get("depends_on", ()) for one in there},
            path=path,
            root=root,
        )

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do. Reads do not count: the next plan repeats them."""
        return not self.outputs and all(
            one.action in ("no-op", "read") and not one.is_import and not one.previous_address for one in self.changes
        )

    @property
    def news(self) -> tuple[ResourceChange, ...]:
        """The changes that not each plan has."""
        return tuple(one for one in self.changes if not one.is_repeated)

    @property
    def standing(self) -> frozenset[str]:
        """Types of which a finished resource is there."""
        return frozenset(
            one.type for one in self.changes if one.action not in ("create", "read") and not one.is_tainted
        )

    @property
    def summary(self) -> str:
        """The numbers of changes in a few words, destructive ones first."""
        counted = Counter(one.action for one in self.news)
        told = [f"{counted[one]} to {'destroy' if one == 'delete' else one}" for one in _SIGNS if counted[one]]
        if imported := sum(one.is_import for one in self.changes):
            told.append(f"{imported} to import")
        if not told and self.outputs:
            return f"only outputs change: {', '.join(self.outputs)}"
        return ", ".join(told) or "nothing to do"

    def lines(self) -> Iterator[str]:
        yield f"Plan: {self.summary}."
        for action in _SIGNS:
            yield from (str(one) for one in self.news if one.action == action)
        if repeated := [one for one in self.changes if one.is_repeated and one.action != "no-op"]:
            yield "In each plan, without a change of the cluster:"
            yield from map(str, repeated)
        if self.drift:
            yield "Changed by others since Terraform's last refresh:"
            yield from map(str, self.drift)

    def refuse_destruction(self, allowed: Sequence[str] = (), *, unfinished: bool = False) -> None:
        """Raise ``TerraformError`` if what a resource holds is lost, and its address matches none of ``allowed``.

        With ``unfinished``, tainted resources may be replaced: this is how an interrupted creation continues.
        """
        lost = [one for one in self.changes if one.is_loss and not one.is_among(allowed)]
        refused = [one for one in lost if not (unfinished and one.is_tainted)]
        if not refused:
            return
        ends = {"replace": "replaced", "delete": "destroyed"}
        told = (f"{one.label} would be {ends[one.action]}{one.why and f' because {one.why}'}" for one in refused)
        remedy = DESTRUCTION_REFUSED.remedy
        if tainted := [one.address for one in refused if one.is_tainted]:
            kept = f"`terraform untaint {tainted[0]}` in {self.root}, with the backend's keys in the environment"
            remedy = f"{remedy}; one that is in use is kept by {kept}"
        raise DESTRUCTION_REFUSED.error(f"rejected, nothing was changed: {'; '.join(told)}", remedy)


def resources_of(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The resources in a state, as ``terraform show -json`` has it, of all modules."""
    modules = [state.get("values", {}).get("root_module", {})]
    for module in modules:
        yield from module.get("resources", ())
        modules += module.get("child_modules", ())


def _is_unknown(value: Any) -> bool:
    """True if any part is known only after the apply."""
    if isinstance(value, Mapping):
        return any(map(_is_unknown, value.values()))
    return any(map(_is_unknown, value)) if isinstance(value, list) else value is True


def _path(steps: Iterable[str | int]) -> str:
    """The path of an attribute in Terraform's notation: ``boot_disk[0].type``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
