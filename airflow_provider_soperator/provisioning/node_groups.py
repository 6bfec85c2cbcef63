"""Node groups of a recipe that a plan changes in place, and the nodes that are lost by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.terraform.plan import ResourceChange, TerraformPlan

_NODE_GROUP = "nebius_mk8s_v1_node_group"


def refuse_lost_nodes(plan: TerraformPlan, allowed: Sequence[str]) -> None:
    """Raise ``SpecMistake`` if a node group becomes smaller or another one, and its address is not ``allowed``.

    For Terraform these are updates. The machines, and the jobs on them, are lost all the same.
    """
    for one in plan.changes:
        if one.type == _NODE_GROUP and one.action == "update" and not one.is_among(allowed) and (how := _lost(one)):
            raise SpecMistake(
                f"rejected, nothing was changed: {how}; jobs on machines that go are killed: if none runs there, set "
                f"allow_destroy=[{one.address!r}]"
            )


def _lost(one: ResourceChange) -> str:
    was, becomes = one.before.get("name"), one.after.get("name")
    if was and becomes and was != becomes:
        # The recipe numbers its node groups.
        return (
            f"{one.address} would turn from {was} into {becomes} in place: keep the order of nodesets in the spec, and "
            "add new ones at the end"
        )
    before, after = size(one.before), size(one.after)
    if before is not None and after is not None and after < before:
        return f"the node group {was or one.address} would shrink from {before} to {after} machines"
    return ""


def size(group: Mapping[str, Any]) -> int | None:
    """The number of machines that a node group may have; None if the plan does not say.

    >>> size({"fixed_node_count": 2}), size({"autoscaling": {"min_node_count": 0, "max_node_count": 8}}), size({})
    (2, 8, None)
    """
    fixed, scaled = group.get("fixed_node_count"), group.get("autoscaling") or {}
    said = fixed if fixed is not None else scaled.get("max_node_count")
    return None if said is None else int(said)
