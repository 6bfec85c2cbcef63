"""Targets that go through JSON are the same afterwards; what would not be is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import TypeAdapter

from airflow_provider_soperator.capacity import targets
from airflow_provider_soperator.capacity.targets import (
    KubernetesScaleTarget,
    NebiusNodeGroupTarget,
    SlurmNodesTarget,
    Target,
    refuse_strangers,
)
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.capacity import ScaleTargetOperator

REPLICAS = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8, kind="example.com/v1/Model")
NODES = SlurmNodesTarget(name="training", nodes="worker-[0-7]", node_groups=["mk8snodegroup-e00training"])  # type: ignore[arg-type]
MACHINES = NebiusNodeGroupTarget(name="machines", node_group="mk8snodegroup-e00example")


@dataclass(frozen=True, kw_only=True)
class Derived(SlurmNodesTarget):
    """Would be read as what it is derived from."""


@pytest.mark.parametrize("target", [REPLICAS, MACHINES, NODES])
def test_what_is_read_is_what_was_written(target: Target) -> None:
    kinds = TypeAdapter[Target](Target)
    assert kinds.validate_python(json.loads(kinds.dump_json(target))) == target


def test_one_node_group_may_be_one_text() -> None:
    one = SlurmNodesTarget(name="training", nodes="worker-0", node_groups="mk8snodegroup-a")  # type: ignore[arg-type]
    assert one.node_groups == ("mk8snodegroup-a",)


def test_nodes_may_be_a_list() -> None:
    one = SlurmNodesTarget(name="training", nodes=["worker-0", "gpu-[0-3]"])  # type: ignore[arg-type]
    assert one == SlurmNodesTarget(name="training", nodes="worker-0,gpu-[0-3]")


@pytest.mark.parametrize("target", [Derived(name="training", nodes="worker-0"), {"name": "training"}])
def test_what_others_could_not_read_is_refused(target: Any) -> None:
    words = "is not a target: use KubernetesScaleTarget, NebiusNodeGroupTarget, SlurmNodesTarget"
    with pytest.raises(CapacityMistake, match=words):
        refuse_strangers([NODES, target])
    with pytest.raises(CapacityMistake, match=words):
        ScaleTargetOperator(task_id="scale", target=target, units=1)


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SlurmNodeTarget'"):
        targets.SlurmNodeTarget  # noqa: B018
