"""Targets that go through JSON are the same afterwards, and nothing but targets is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_soperator.capacity import targets
from airflow_provider_soperator.capacity.targets import (
    KubernetesScaleTarget,
    NebiusNodeGroupTarget,
    SlurmNodesTarget,
)
from airflow_provider_soperator.capacity.targets.protocol import Target, read_target, write_target
from airflow_provider_soperator.errors import CapacityMistake

REPLICAS = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8, kind="example.com/v1/Model")
NODES = SlurmNodesTarget(name="training", nodes="worker-[0-7]")
MACHINES = NebiusNodeGroupTarget(name="machines", node_group="mk8snodegroup-e00example")


@dataclass(frozen=True, kw_only=True)
class Both:
    """A target made of others."""

    name: str
    parts: tuple[Target, ...]
    first: Target | None = None
    notes: Mapping[str, Any] | None = None
    gpus_per_unit: int = 8
    units: str = "replicas"

    def open(self, purpose: Any, clients: Any, log: Any) -> Any:
        raise NotImplementedError


@dataclass
class Mutable:
    """Has all that a target has, and may change while somebody holds it."""

    name: str = "changes"
    gpus_per_unit: int = 8
    units: str = "nodes"

    def open(self, purpose: Any, clients: Any, log: Any) -> Any:
        raise NotImplementedError


NESTED = Both(name="both", parts=(REPLICAS, MACHINES), first=MACHINES, notes={"by": "us", "ratio": 0.5, "more": (1, 2)})


@pytest.mark.parametrize("target", [REPLICAS, MACHINES, NODES, NESTED])
def test_what_is_read_is_what_was_written(target: Target) -> None:
    assert read_target(json.loads(json.dumps(write_target(target)))) == target


def local() -> Target:
    @dataclass(frozen=True)
    class Hidden(Both):
        pass

    return Hidden(name="hidden", parts=())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Mutable(), "is not a target: make it a frozen dataclass"),
        ({"name": "training"}, "is not a target"),
        (local(), "other processes cannot import Hidden"),
        (Both(name="both", parts=(), notes={"at": object()}), "Both.notes is <object .*, which JSON cannot carry"),
        (Both(name="both", parts=(), notes={1: "one"}), "which JSON cannot carry"),
    ],
)
def test_what_others_could_not_read_is_refused(target: Any, words: str) -> None:
    with pytest.raises(CapacityMistake, match=words):
        write_target(target)


@pytest.mark.parametrize(
    "path",
    [
        "subprocess:Popen",
        "builtins:eval",
        "airflow_provider_soperator.nebius.capacity_blocks:CapacityBlock",
        "airflow_provider_soperator.capacity.targets.protocol:Target",
        "airflow_provider_soperator.capacity.targets.kubernetes_session:NoSuchTarget",
        "no_such_module:Target",
        "",
    ],
)
def test_nothing_but_targets_is_made(path: str) -> None:
    with pytest.raises(CapacityMistake, match="is not a target: install the package that defines it"):
        read_target({"__target__": path, "id": "b", "limit": 1, "usage": 0, "args": ["true"]})


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SlurmNodeTarget'"):
        targets.SlurmNodeTarget  # noqa: B018
