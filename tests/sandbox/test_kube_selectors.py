"""Label and field selectors, as text and on objects."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.kube.errors import ApiError
from sandbox.kube.selectors import field_selector, label_selector, selector_text

OBJECT: dict[str, Any] = {
    "metadata": {
        "name": "worker-0",
        "labels": {"app": "slurmd", "slurm.nebius.ai/nodeset": "worker", "empty": ""},
    },
    "spec": {"nodeName": "gpu-a"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=slurmd", True),
        ("app==slurmd", True),
        ("app = slurmd", True),
        ("app=other", False),
        ("app!=slurmd", False),
        ("app!=other", True),
        # A label that is not there is different from every value.
        ("absent!=x", True),
        ("absent=x", False),
        ("empty=", True),
        ("app=", False),
        ("app", True),
        ("absent", False),
        ("!absent", True),
        ("!app", False),
        ("app in (a, slurmd)", True),
        ("app in (a,b)", False),
        ("app notin (a,b)", True),
        ("app notin (slurmd)", False),
        ("absent notin (a)", True),
        ("absent in (a)", False),
        ("slurm.nebius.ai/nodeset=worker,app in (slurmd,x),!absent", True),
        ("slurm.nebius.ai/nodeset=worker,app in (y,x)", False),
    ],
)
def test_label_selector(selector: str, matches: bool) -> None:
    assert label_selector(selector)(OBJECT) is matches


def test_object_without_labels() -> None:
    assert label_selector("!app")({"metadata": {"name": "bare"}})
    assert not label_selector("app")({"metadata": {"labels": None}})


@pytest.mark.parametrize("selector", ["a in", "a in b", "a,,b", "a=b=c", "=b", "a in (b", "-a"])
def test_label_selector_that_is_none(selector: str) -> None:
    with pytest.raises(ApiError) as caught:
        label_selector(selector)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("metadata.name=worker-0", True),
        ("metadata.name==worker-0,status.phase=Running", True),
        ("metadata.name=worker-1", False),
        ("spec.nodeName=gpu-a,status.phase!=Succeeded,status.phase!=Failed", True),
        ("status.phase!=Running", False),
        # What is not there is empty.
        ("metadata.namespace=", True),
    ],
)
def test_field_selector(selector: str, matches: bool) -> None:
    assert field_selector(selector)(OBJECT) is matches


@pytest.mark.parametrize("selector", ["spec.replicas=1", "metadata.name"])
def test_field_selector_that_is_refused(selector: str) -> None:
    with pytest.raises(ApiError) as caught:
        field_selector(selector)
    assert caught.value.code == 400


def test_selector_object_as_text() -> None:
    rules = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "zone", "operator": "NotIn", "values": ["c"]},
        {"key": "gpu", "operator": "Exists"},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    text = selector_text({"matchLabels": {"app": "vllm"}, "matchExpressions": rules})
    assert text == "app=vllm,tier in (a,b),zone notin (c),gpu,!old"
    assert label_selector(text)({"metadata": {"labels": {"app": "vllm", "tier": "b", "gpu": ""}}})
    assert selector_text("app=vllm") == "app=vllm"
    assert selector_text(None) == ""
