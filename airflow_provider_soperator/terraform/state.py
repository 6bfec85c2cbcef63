"""The state that a recipe's backend keeps: where a local one lies, and what was left when it could not be saved."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.command import Terraform
from airflow_provider_soperator.terraform.diagnostics import errors
from airflow_provider_soperator.terraform.errors import StateNotSaved, TerraformFailed

#: What Terraform leaves beside the recipe if the backend does not take the state.
ERRORED = "errored.tfstate"
LOCAL = "terraform.tfstate"
#: File systems that end with the machine or the container.
_PASSING = {"tmpfs", "ramfs", "overlay"}


def is_passing(folder: Path) -> bool:
    """Whether a folder ends with its machine, or its container, as far as this machine can say."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    here = folder.resolve()
    # The mount with the longest path is the one that the folder is on; of two with one path the last counts.
    ways = [(len(path), kind) for _, path, kind, *_ in mounts if here.is_relative_to(path)]
    return max(reversed(ways), key=lambda one: one[0], default=(0, ""))[1] in _PASSING


def has_resources(path: Path) -> bool:
    """Whether a state file knows of anything."""
    try:
        return bool(json.loads(path.read_text()).get("resources"))
    except FileNotFoundError:
        return False


def save_errored(terraform: Terraform, root: Path) -> str:
    """Give the backend the state that an earlier run could not; what was done, or nothing.

    Terraform itself refuses it if the backend's state is a newer one, or another cluster's.
    """
    path = root / ERRORED
    if not path.exists():
        return ""
    pushed = terraform.run("state", "push", ERRORED, cwd=root)
    if pushed.status:
        words = "; ".join(one.words for one in errors(pushed.diagnostics))
        raise StateNotSaved(
            f"the state of an earlier run is only in {path}, and the backend does not take it ({words})",
            f"see why, then run `terraform state push {ERRORED}` in {root}; nothing is done before that",
        )
    kept = path.with_name(f"{ERRORED}.{time.strftime('%Y%m%d-%H%M%S')}.pushed")
    os.replace(path, kept)
    return f"the state that an earlier run could not save is in the backend now; the file is kept as {kept}"


def values_of(document: Mapping[str, Any], address: str) -> dict[str, Any]:
    """The attributes of a resource, from ``terraform show -json``."""
    found = {one["address"]: one.get("values", {}) for one in _resources(document.get("values", {}))}
    if address not in found:
        raise TerraformFailed(f"the state has no {address}", "see `terraform state list` in the workspace's folder")
    return dict(found[address])


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a value of an output."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_of(one)


def _resources(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    modules = [document.get("root_module", {})]
    while modules:
        module = modules.pop()
        yield from module.get("resources", ())
        modules.extend(module.get("child_modules", ()))
