"""Server-side apply and the record of who has set what, without a server."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from sandbox.kube.catalogue import DEPLOYMENT, NODE_SET, NODE_SET_POWER_STATE
from sandbox.kube.errors import ApiError
from sandbox.kube.fields import decoded, encoded, leaves
from sandbox.kube.managers import Manager, apply, note_update

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
ME, OTHER = (Manager(name, "Apply", NODE_SET.api_version) for name in ("me", "other"))
HELM = Manager("helm", "Update", NODE_SET.api_version)


def applied(old: dict[str, Any], spec: dict[str, Any], manager: Manager = ME, **options: Any) -> dict[str, Any]:
    options.setdefault("labels", {})
    labels = options.pop("labels")
    metadata = {"name": "w", **({"labels": labels} if labels else {})}
    return apply(NODE_SET, old, {"metadata": metadata, "spec": spec}, manager, NOW, **options)


def owners(thing: dict[str, Any]) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in thing["metadata"].get("managedFields", [])}


def test_apply_removes_what_the_manager_no_longer_names() -> None:
    old = applied({}, {"replicas": 1, "gpu": {"enabled": True}}, labels={"a": "1", "b": "2"})
    old["spec"]["theirs"] = 1
    old["metadata"]["labels"]["c"] = "3"
    new = applied(old, {"replicas": 2}, labels={"a": "1"})
    assert new["spec"] == {"replicas": 2, "theirs": 1}
    assert new["metadata"]["labels"] == {"a": "1", "c": "3"}
    assert owners(new) == {"me": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:replicas": {}}}}


def test_what_another_manager_named_as_well_stays() -> None:
    old = applied(applied({}, {"replicas": 1}), {"replicas": 1, "gpu": {"enabled": True}}, OTHER)
    new = applied(old, {"priorityClass": "high"})
    assert new["spec"] == {"replicas": 1, "gpu": {"enabled": True}, "priorityClass": "high"}
    assert owners(new)["me"] == {"f:spec": {"f:priorityClass": {}}}


def test_a_change_of_what_another_manages_is_a_conflict() -> None:
    old = applied({}, {"replicas": 1, "gpu": {"enabled": True}}, OTHER)
    with pytest.raises(ApiError) as caught:
        applied(old, {"replicas": 2})
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "other": .spec.replicas'
    with pytest.raises(ApiError) as caught:
        applied(old, {"replicas": 2, "gpu": {"enabled": False}})
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "other":\n- .spec.gpu.enabled\n- .spec.replicas'
    )
    assert [cause["field"] for cause in caught.value.details["causes"]] == [".spec.gpu.enabled", ".spec.replicas"]


def test_force_takes_fields_over() -> None:
    old = applied({}, {"replicas": 1, "priorityClass": "high"}, OTHER)
    new = applied(old, {"replicas": 2}, force=True)
    assert new["spec"] == {"replicas": 2, "priorityClass": "high"}
    assert owners(new) == {"other": {"f:spec": {"f:priorityClass": {}}}, "me": {"f:spec": {"f:replicas": {}}}}


def test_the_same_value_is_no_conflict_and_belongs_to_both() -> None:
    new = applied(applied({}, {"replicas": 1}, OTHER), {"replicas": 1})
    assert owners(new) == {name: {"f:spec": {"f:replicas": {}}} for name in ("me", "other")}


def test_who_updates_a_field_has_it_from_then_on() -> None:
    old = applied({}, {"replicas": 1, "priorityClass": "high"})
    new = {**old, "spec": {"replicas": 3, "priorityClass": "high"}}
    note_update(NODE_SET, old, new, HELM, NOW)
    assert owners(new) == {"me": {"f:spec": {"f:priorityClass": {}}}, "helm": {"f:spec": {"f:replicas": {}}}}
    with pytest.raises(ApiError, match=r'conflict with "helm" using slurm.nebius.ai/v1alpha1 at 2026-01-01T00:00:00Z'):
        applied(new, {"replicas": 1, "priorityClass": "high"})


def test_to_apply_the_same_again_changes_nothing() -> None:
    old = applied({}, {"replicas": 1})
    metadata = {"name": "w"}
    later = datetime(2027, 1, 1, tzinfo=timezone.utc)
    assert apply(NODE_SET, old, {"metadata": metadata, "spec": {"replicas": 1}}, ME, later) == old


def test_status_and_the_rest_are_applied_apart() -> None:
    status = Manager("me", "Apply", NODE_SET.api_version, "status")
    body = {"metadata": {"name": "w"}, "spec": {"replicas": 1}, "status": {"phase": "Ready"}}
    assert "status" not in apply(NODE_SET, {}, body, ME, NOW)
    made = apply(NODE_SET, {"spec": {"replicas": 4}}, body, status, NOW)
    assert (made["spec"], made["status"]) == ({"replicas": 4}, {"phase": "Ready"})
    assert made["metadata"]["managedFields"][0]["subresource"] == "status"


def test_lists_of_named_items_are_joined_and_other_lists_replaced() -> None:
    pods = {"containers": [{"name": "a", "image": "1"}], "tolerations": [{"key": "x"}]}
    old = apply(DEPLOYMENT, {}, {"metadata": {}, "spec": {"template": {"spec": pods}}}, OTHER, NOW)
    more = {"containers": [{"name": "b", "image": "2"}]}
    both = apply(DEPLOYMENT, old, {"metadata": {}, "spec": {"template": {"spec": more}}}, ME, NOW)
    assert [item["name"] for item in both["spec"]["template"]["spec"]["containers"]] == ["a", "b"]
    key = both["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert key == {'k:{"name":"b"}': {".": {}, "f:image": {}, "f:name": {}}}
    fewer = apply(DEPLOYMENT, both, {"metadata": {}, "spec": {"replicas": 1}}, ME, NOW)
    assert fewer["spec"]["template"]["spec"] == pods


def test_the_items_of_a_set_have_managers_of_their_own() -> None:
    def activate(old: dict[str, Any], nodes: list[int], manager: Manager) -> dict[str, Any]:
        return apply(NODE_SET_POWER_STATE, old, {"metadata": {}, "spec": {"activeNodes": nodes}}, manager, NOW)

    both = activate(activate({}, [0, 1], OTHER), [1, 2], ME)
    assert both["spec"]["activeNodes"] == [0, 1, 2]
    assert activate(both, [1], ME)["spec"]["activeNodes"] == [0, 1]


def test_field_sets_survive_their_encoding() -> None:
    thing = {"metadata": {"labels": {"a": "b"}, "finalizers": ["x"]}, "spec": {"containers": [{"name": "c"}], "d": {}}}
    paths = set(leaves(DEPLOYMENT, thing))
    assert decoded(encoded(paths)) == paths


def test_nobody_names_managers_themselves() -> None:
    with pytest.raises(ApiError, match="managedFields must be nil"):
        apply(NODE_SET, {}, {"metadata": {"managedFields": [{"manager": "me"}]}}, ME, NOW)
