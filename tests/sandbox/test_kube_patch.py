"""The three kinds of patch, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.kube.catalogue import DEPLOYMENT, NODE_SET
from sandbox.kube.errors import ApiError
from sandbox.kube.patch import (
    JSON,
    MERGE,
    STRATEGIC,
    apply_patch,
    json_patch,
    merge,
    strategic,
)


# The examples of RFC 7386, appendix A, whose targets and patches are objects.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge(target: Any, patch: dict[str, Any], result: dict[str, Any]) -> None:
    assert merge(target, patch) == result


def test_patches_leave_the_old_object_alone() -> None:
    old = {"spec": {"conditions": [{"type": "A", "status": "1"}], "x": 1}}
    before = repr(old)
    merge(old, {"spec": {"x": 2}})
    strategic(old, {"spec": {"conditions": [{"type": "A", "status": "2"}]}})
    json_patch(old, [{"op": "remove", "path": "/spec/x"}])
    assert repr(old) == before


def test_json_patch() -> None:
    operations = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 2},
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "c"}},
        {"op": "remove", "path": "/metadata/labels/a~1b"},
    ]
    result = json_patch({"metadata": {}, "spec": {"replicas": 1}}, operations)
    assert result == {"metadata": {"labels": {}}, "spec": {"replicas": 2}}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/spec", "value": 1}], 422),
        ([{"op": "remove", "path": "/absent"}], 422),
        ([{"op": "replace", "path": "/absent/deep", "value": 1}], 422),
        ({"op": "remove", "path": "/spec"}, 400),
    ],
)
def test_json_patch_that_fails(operations: Any, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        json_patch({"spec": {}}, operations)
    assert caught.value.code == code


def test_strategic_merge_joins_lists_by_key() -> None:
    old = {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Drain", "status": "True"}]}}
    patch = {"status": {"conditions": [{"type": "Drain", "status": "False"}, {"type": "New", "status": "True"}]}}
    assert strategic(old, patch)["status"]["conditions"] == [
        {"type": "Ready", "status": "True"},
        {"type": "Drain", "status": "False"},
        {"type": "New", "status": "True"},
    ]


def test_strategic_merge_directives() -> None:
    old = {
        "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1"}},
        "spec": {
            "containers": [{"name": "a", "image": "1", "env": [{"name": "E", "value": "1"}]}, {"name": "b"}],
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "taints": [{"key": "old"}],
            "gone": {"x": 1},
        },
    }
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "finalizers": ["c"],
            "labels": {"x": None},
        },
        "spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [
                {"name": "b", "$patch": "delete"},
                {"name": "a", "env": [{"name": "F", "value": "2"}]},
            ],
            "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
            "taints": [{"key": "new"}],
            "gone": {"$patch": "delete"},
        },
    }
    assert strategic(old, patch) == {
        "metadata": {"finalizers": ["b", "c"], "labels": {}},
        "spec": {
            "containers": [
                {"name": "a", "image": "1", "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}]}
            ],
            "strategy": {"type": "Recreate"},
            "taints": [{"key": "new"}],
        },
    }


def test_strategic_merge_replaces_on_demand() -> None:
    old = {"spec": {"containers": [{"name": "a"}], "selector": {"a": "1"}}}
    patch = {
        "spec": {
            "containers": [{"$patch": "replace"}, {"name": "b"}],
            "selector": {"$patch": "replace", "b": "2"},
        }
    }
    assert strategic(old, patch) == {"spec": {"containers": [{"name": "b"}], "selector": {"b": "2"}}}


@pytest.mark.parametrize(
    ("kind", "content_type", "code"),
    [(NODE_SET, STRATEGIC, 415), (NODE_SET, "application/json", 415), (DEPLOYMENT, "text/plain", 415)],
)
def test_content_types_that_are_refused(kind: Any, content_type: str, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(kind, {}, content_type, {})
    assert caught.value.code == code
    assert JSON in caught.value.message


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC])
def test_a_patch_that_is_no_object(content_type: str) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(DEPLOYMENT, {}, content_type, [])
    assert caught.value.code == 400
