"""The rules of X-ResetMask, one by one, on the SDK's own messages."""

from __future__ import annotations

import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.mk8s.v1 import (
    NodeGroupAutoscalingSpec,
    NodeGroupSpec,
    NodeMetadataTemplate,
    NodeTaint,
    NodeTemplate,
    ResourcesSpec,
    UpdateNodeGroupRequest,
)
from nebius.base.fieldmask_parser import parse

from sandbox.nebius.reset_mask import merged
from tests.sandbox.nebius_world import wire


def current() -> UpdateNodeGroupRequest:
    template = NodeTemplate(
        resources=ResourcesSpec(platform="gpu-h100-sxm", preset="8gpu"),
        metadata=NodeMetadataTemplate(labels={"a": "1", "b": "2"}),
        taints=[NodeTaint(key="x", value="1"), NodeTaint(key="y", value="2")],
        max_pods=32,
    )
    return UpdateNodeGroupRequest(
        metadata=ResourceMetadata(id="group", labels={"team": "ml"}),
        spec=NodeGroupSpec(version="1.33", fixed_node_count=2, template=template),
    )


def update(spec: NodeGroupSpec | None, mask: str) -> UpdateNodeGroupRequest:
    before = current()
    after = merged(before, UpdateNodeGroupRequest(spec=spec), parse(mask))
    assert wire(before) == wire(current())
    return after


def test_without_a_mask_only_what_is_carried_changes() -> None:
    expected = current()
    expected.spec.version = "1.34"
    assert wire(update(NodeGroupSpec(version="1.34"), "")) == wire(expected)


def test_what_the_mask_names_and_the_payload_lacks_is_reset() -> None:
    after = update(NodeGroupSpec(fixed_node_count=2), "metadata.labels,spec.(template,version)")
    assert not after.spec.HasField("template")
    assert after.spec.version == ""
    assert after.spec.fixed_node_count == 2


def test_a_zero_that_is_carried_needs_no_mask() -> None:
    assert update(NodeGroupSpec(fixed_node_count=0), "").spec.fixed_node_count == 0


def test_a_message_that_the_payload_lacks_goes_as_a_whole_though_a_part_is_named() -> None:
    assert not update(None, "spec.version").HasField("spec")


def test_a_message_that_is_carried_loses_only_what_is_named() -> None:
    after = update(NodeGroupSpec(), "spec.version")
    expected = current()
    expected.spec.version = ""
    assert wire(after) == wire(expected)


def test_a_mask_of_a_carried_message_spares_its_fields() -> None:
    after = update(NodeGroupSpec(template=NodeTemplate()), "spec.template")
    assert wire(after) == wire(current())


def test_one_member_of_a_oneof_puts_the_other_out() -> None:
    bounds = NodeGroupAutoscalingSpec(min_node_count=1, max_node_count=2)
    for mask in ("", "spec.fixed_node_count", "spec.autoscaling"):
        after = update(NodeGroupSpec(autoscaling=bounds), mask)
        assert after.spec.WhichOneof("size") == "autoscaling"
        assert after.spec.autoscaling is not None
        assert wire(after.spec.autoscaling) == wire(bounds)


def test_a_map_gets_the_keys_of_the_payload() -> None:
    template = NodeTemplate(metadata=NodeMetadataTemplate(labels={"b": "3"}))
    assert update(NodeGroupSpec(template=template), "").spec.template.metadata.labels == {"b": "3"}


@pytest.mark.parametrize(
    ("mask", "first"),
    [("", "1"), ("spec.template.taints.*.value", ""), ("spec.template.taints.0.value", "")],
)
def test_a_list_gets_the_length_of_the_payload_and_is_merged_in_place(mask: str, first: str) -> None:
    template = NodeTemplate(taints=[NodeTaint(key="z")])
    (taint,) = update(NodeGroupSpec(template=template), mask).spec.template.taints
    assert (taint.key, taint.value) == ("z", first)


def test_a_list_that_is_named_and_not_carried_is_emptied() -> None:
    template = NodeTemplate(max_pods=32)
    after = update(NodeGroupSpec(template=template), "spec.template.(taints,metadata)")
    assert list(after.spec.template.taints) == []
    assert not after.spec.template.HasField("metadata")
    assert after.spec.template.resources.platform == "gpu-h100-sxm"
