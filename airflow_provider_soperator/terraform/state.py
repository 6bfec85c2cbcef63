"""State of a recipe: the place of a local one, a state that could not be saved, and the holder of the lock."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.command import Terraform
from airflow_provider_soperator.terraform.failures import STATE_NOT_SAVED, TERRAFORM_FAILED, Diagnostic, TerraformError
from airflow_provider_soperator.values import moment_of

#: File that Terraform leaves beside the recipe if the backend rejects the state.
ERRORED = "errored.tfstate"
LOCAL = "terraform.tfstate"
#: File systems that end with the machine or the container.
_PASSING = {"tmpfs", "ramfs", "overlay"}

_FIELD = re.compile(r"^\s*(ID|Operation|Who|Created):[ \t]*(\S.*?)\s*$", re.MULTILINE)
_HELD = re.compile(r"already locked: ID=(\S+)")


def is_passing(folder: Path) -> bool:
    """True if a folder is lost with its machine or container, as far as this machine can tell."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    here = folder.resolve()
    # The folder is on the mount with the longest path; of two mounts with the same path the last one counts.
    ways = [(len(path), kind) for _, path, kind, *_ in mounts if here.is_relative_to(path)]
    return max(reversed(ways), key=lambda one: one[0], default=(0, ""))[1] in _PASSING


def has_resources(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text()).get("resources"))
    except FileNotFoundError:
        return False


def save_errored(terraform: Terraform, root: Path) -> str:
    """Push a state that an earlier run could not save; returns what was done, or an empty string.

    Terraform itself rejects it if the backend's state is newer, or of another cluster.
    """
    path = root / ERRORED
    if not path.exists():
        return ""
    try:
        terraform.run("state", "push", ERRORED, cwd=root)
    except TerraformError as error:
        raise STATE_NOT_SAVED.error(
            f"the state of an earlier run is only in {path}, and cannot be pushed to the backend ({error.what})",
            f"fix the cause, then run `terraform state push {ERRORED}` in {root}; until then nothing is changed",
        ) from error
    kept = path.with_name(f"{ERRORED}.{time.strftime('%Y%m%d-%H%M%S')}.pushed")
    os.replace(path, kept)
    return f"pushed the state that an earlier run could not save to the backend; the file is kept as {kept}"


def values_of(document: Mapping[str, Any], address: str) -> dict[str, Any]:
    found = {one["address"]: one.get("values", {}) for one in _resources(document.get("values", {}))}
    if address not in found:
        raise TERRAFORM_FAILED.error(
            f"the state has no {address}", "see `terraform state list` in the workspace's folder"
        )
    return dict(found[address])


def seconds_of(timestamp: str) -> float | None:
    """Seconds since the epoch; None for a text that is not a date and time.

    >>> seconds_of("2026-11-22T10:55:35.496482+09:00"), seconds_of("2026-11-22 01:55:35.496482762Z")
    (1795312535.496482, 1795312535.496482)
    """
    try:
        moment = moment_of("timestamp", timestamp)
    except ValueError:
        return None
    return moment.timestamp() if moment else None


def _resources(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    modules = [document.get("root_module", {})]
    while modules:
        module = modules.pop()
        yield from module.get("resources", ())
        modules.extend(module.get("child_modules", ()))


@dataclass(frozen=True)
class Lock:
    """Lock that Terraform could not get, from its error message."""

    id: str
    who: str = ""
    operation: str = ""
    created: str = ""

    @classmethod
    def read(cls, diagnostics: Iterable[Diagnostic]) -> Lock | None:
        """The lock in an error; None if the error does not describe it."""
        for one in diagnostics:
            said = dict(_FIELD.findall(one.detail))
            # Terraform's http backend describes the requested lock instead of the one that is held.
            if (held := _HELD.search(one.detail)) and held[1] != said.get("ID"):
                return cls(id=held[1])
            if "ID" in said:
                return cls(said["ID"], said.get("Who", ""), said.get("Operation", ""), said.get("Created", ""))
        return None

    @property
    def created_at(self) -> float | None:
        """Its creation in seconds since the epoch; None if it cannot be parsed."""
        return seconds_of(self.created.replace(" +0000 UTC", "Z"))

    def __str__(self) -> str:
        operation = self.operation.removeprefix("OperationType").lower() or "an operation"
        since = f" since {self.created}" if self.created else ""
        return f"{self.who or 'another process'} holds the lock of the state for {operation}{since} ({self.id})"

    def belongs_to(self, who: str, began: float, last_sign: float) -> bool:
        """True if it is the lock of a run with this user, start and last sign of life.

        At its last sign of life that run held the lock, so no other process did. A lock that was created between the
        start of the run and that sign, on the same machine and so by the same clock, is the run's.
        """
        return self.who == who and self.created_at is not None and began <= self.created_at <= last_sign
