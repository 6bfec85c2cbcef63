"""What a plan says of itself, and which plans are refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.terraform.failures import DESTRUCTION_REFUSED
from airflow_provider_soperator.terraform.plan import TerraformPlan
from tests.terraform_errors import fails


def change(address: str, *actions: str, reason: str = "", was: str = "", kind: str = "", **more: Any) -> dict[str, Any]:
    said = {"address": address, "type": kind, "change": {"actions": list(actions), **more}}
    optional = {"action_reason": reason, "previous_address": was}
    return said | {name: value for name, value in optional.items() if value}


def plan(*changes: dict[str, Any], **more: Any) -> TerraformPlan:
    return TerraformPlan.read({"resource_changes": list(changes), **more})


WHOLE = plan(
    change("a.new", "create"),
    change("a.same", "no-op"),
    change("a.bigger", "update"),
    change("data.a.looked_up", "read", reason="read_because_config_unknown"),
    change("a.jail", "delete", reason="delete_because_no_resource_config"),
    change(
        "a.cluster",
        "delete",
        "create",
        reason="replace_because_cannot_update",
        replace_paths=[["network", 0, "subnet"], ["name"]],
    ),
    change("a.mine", "no-op", importing={"id": "x"}),
    change("a.after", "no-op", was="a.before"),
    resource_drift=[change("a.bigger", "update")],
    output_changes={"address": {"actions": ["update"]}, "name": {"actions": ["no-op"]}},
)


def test_what_is_told() -> None:
    assert WHOLE.summary == "1 to destroy, 1 to replace, 1 to create, 1 to update, 1 to read, 1 to import"
    assert list(WHOLE.lines()) == [
        f"Plan: {WHOLE.summary}.",
        "  - a.jail   it is no longer in the recipe",
        "-/+ a.cluster   it cannot be changed in place (network[0].subnet, name)",
        "  + a.new",
        "  ~ a.bigger",
        " <= data.a.looked_up   read because config unknown",
        "Changed by others since Terraform's last refresh:",
        "  ~ a.bigger",
    ]
    assert WHOLE.outputs == ("address",)


@pytest.mark.parametrize(
    ("said", "is_empty"),
    [
        (plan(change("a.b", "no-op"), change("data.a.b", "read")), True),
        (plan(change("a.b", "update")), False),
        (plan(change("a.b", "no-op", importing={"id": "x"})), False),
        (plan(change("a.b", "no-op", was="a.c")), False),
        (plan(output_changes={"a": {"actions": ["create"]}}), False),
    ],
)
def test_whether_there_is_anything_to_do(said: TerraformPlan, is_empty: bool) -> None:
    assert said.is_empty is is_empty


def test_only_outputs() -> None:
    assert plan(output_changes={"a": {"actions": ["create"]}}).summary == "only outputs change: a"
    assert plan().summary == "nothing to do"


def test_destruction_is_refused_with_each_address_and_why() -> None:
    with fails(DESTRUCTION_REFUSED) as refused:
        WHOLE.refuse_destruction()
    said = str(refused.value)
    assert "a.jail would be destroyed because it is no longer in the recipe" in said
    assert "a.cluster would be replaced because it cannot be changed in place (network[0].subnet, name)" in said
    assert not refused.value.retryable
    with fails(DESTRUCTION_REFUSED) as refused:
        WHOLE.refuse_destruction(["a.jail"])
    assert "a.jail" not in str(refused.value)
    WHOLE.refuse_destruction(["a.jail", "a.clus*"])


@pytest.mark.parametrize(
    ("pattern", "address", "is_allowed"),
    [
        ("m.a.b", "m.a.b", True),
        ("m.a.b", 'm.a.b["worker-0"]', True),
        ("m.a.b", "m.a.bc", False),
        ("m.a.b[0]", "m.a.b[0]", True),
        ("m.a.b[0]", "m.a.b[1]", False),
        ('module.g["worker-*"].*', 'module.g["worker-1"].a.b', True),
        ("module.g", "module.g.a.b", False),
        ("*", "anything", True),
        ("m.a.[bc]", "m.a.b", False),
    ],
)
def test_patterns(pattern: str, address: str, is_allowed: bool) -> None:
    said = plan(change(address, "delete"))
    if is_allowed:
        said.refuse_destruction([pattern])
    else:
        with fails(DESTRUCTION_REFUSED):
            said.refuse_destruction([pattern])


def test_what_was_never_finished_may_be_replaced_on_demand() -> None:
    half = plan(change("a.half", "delete", "create", reason="replace_because_tainted"))
    with fails(DESTRUCTION_REFUSED, match="its creation was not finished"):
        half.refuse_destruction()
    half.refuse_destruction(unfinished=True)


TIMED = {"replace_paths": [["triggers_replace"]], "after_unknown": {"triggers_replace": [False, True]}}


def test_what_each_plan_has_is_no_news() -> None:
    said = plan(
        change("a.context", "delete", "create", kind="terraform_data", **TIMED),
        change("a.rendered", "create", kind="local_file"),
        change("a.group", "no-op", kind="nebius_mk8s_v1_node_group"),
    )
    assert said.summary == "nothing to do"
    assert not said.is_empty
    assert list(said.lines())[1:] == [
        "In each plan, without a change of the cluster:",
        "-/+ a.context   (triggers_replace)",
        "  + a.rendered",
    ]
    said.refuse_destruction()
    # A value that is known has changed.
    known = {"replace_paths": [["triggers_replace"]], "after_unknown": {"id": True}}
    assert plan(change("a.wait", "delete", "create", kind="terraform_data", **known)).summary == "1 to replace"
    # What holds something is lost by a replacement, whatever forces it.
    with fails(DESTRUCTION_REFUSED, match=r"a\.fs would be replaced"):
        plan(change("a.fs", "delete", "create", kind="nebius_compute_v1_filesystem", **TIMED)).refuse_destruction()


@pytest.mark.parametrize("kind", ["terraform_data", "null_resource", "local_sensitive_file", "random_id", "time_sleep"])
def test_what_holds_nothing_is_no_loss(kind: str) -> None:
    plan(change("a.b", "delete", "create", kind=kind), change("a.c", "delete", kind=kind)).refuse_destruction()


def test_what_is_tainted_may_be_in_use() -> None:
    half = plan(change("a.b", "delete", "create", kind="helm_release", reason="replace_because_tainted"))
    with fails(DESTRUCTION_REFUSED, match=r"`terraform untaint a\.b`"):
        half.refuse_destruction()
    assert half.standing == frozenset()
    assert plan(change("a.b", "no-op", kind="helm_release"), change("a.c", "create", kind="d")).standing == {
        "helm_release"
    }
