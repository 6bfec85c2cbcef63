"""What is made of a node group and its operations, also as the sandbox's double never has them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from nebius.api.google.rpc import Status
from nebius.api.nebius.common.v1 import (
    Operation,
    QuotaFailure,
    RecurrentResourceEvent,
    ResourceEvent,
    ResourceMetadata,
    ServiceError,
)
from nebius.api.nebius.mk8s.v1 import (
    NodeGroup,
    NodeGroupAutoscalingSpec,
    NodeGroupSpec,
    NodeGroupStatus,
    Problem,
    ProgressData,
)
from nebius.base.protos.dynamic import REGISTRY

from airflow_provider_soperator.nebius.node_groups import GroupSize, is_settled, problems, running, size_of

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
State = NodeGroupStatus.State
RUNNING = Operation(id="op-2", created_at=NOW)


def group(spec: NodeGroupSpec | None = None, **status: Any) -> NodeGroup:
    at_rest = {"state": State.RUNNING, "target_node_count": 4, "node_count": 4, "ready_node_count": 4}
    return NodeGroup(
        metadata=ResourceMetadata(id="group", updated_at=NOW),
        spec=spec or NodeGroupSpec(fixed_node_count=4),
        status=NodeGroupStatus(**at_rest | status),
    )


def event(message: str, at: datetime, level: ResourceEvent.Level = ResourceEvent.Level.WARN) -> RecurrentResourceEvent:
    return RecurrentResourceEvent(last_occurrence=ResourceEvent(occurred_at=at, level=level, message=message))


def test_the_size_is_the_specs() -> None:
    assert size_of(group(NodeGroupSpec(fixed_node_count=0))) == GroupSize(0)
    bounds = NodeGroupAutoscalingSpec(min_node_count=0, max_node_count=3)
    assert size_of(group(NodeGroupSpec(autoscaling=bounds))) == GroupSize(3, least=0)


def test_the_running_operation_is_the_one_without_an_end() -> None:
    over = Operation(id="op-1", created_at=NOW, status=Status(code=0))
    assert running([RUNNING, over]) is RUNNING
    assert running([over]) is None


def test_a_group_at_rest_is_settled() -> None:
    assert is_settled(group(), None)
    # The autoscaler has chosen, and may go on to choose.
    bounds = NodeGroupAutoscalingSpec(min_node_count=0, max_node_count=8)
    assert is_settled(group(NodeGroupSpec(autoscaling=bounds)), None)


@pytest.mark.parametrize(
    ("found", "operation"),
    [
        (group(), RUNNING),
        (group(reconciling=True), None),
        (group(state=State.PROVISIONING), None),
        (group(state=State.DELETING), None),
        (group(node_count=5), None),
        (group(node_count=3), None),
        # The new size has not reached the status.
        (group(NodeGroupSpec(fixed_node_count=2)), None),
    ],
)
def test_what_is_under_way_is_not_settled(found: NodeGroup, operation: Operation | None) -> None:
    assert not is_settled(found, operation)


def test_problems_are_those_of_this_change() -> None:
    data = ProgressData(problems=[Problem(stage="create-node", message="no capacity"), Problem(stage="drain-node")])
    operation = Operation(id="op", created_at=NOW, progress_data=REGISTRY.pack_any(data))
    events = [
        event("no capacity", NOW),
        event("a quota", NOW + timedelta(minutes=1)),
        event("an error of last week", NOW - timedelta(days=7)),
        event("all is well", NOW, ResourceEvent.Level.INFO),
    ]
    found = group(node_count=3, events=events)
    assert problems(found, [operation]) == ("no capacity", "drain-node", "a quota")
    assert problems(found, []) == ("no capacity", "a quota")
    assert problems(group(events=events), []) == ()


def test_an_operation_that_has_failed_says_why_until_the_group_is_settled() -> None:
    failures = [QuotaFailure.Violation(quota="vpc.ipv4-address.public.count", limit="3", requested="4")]
    why = ServiceError(service="vpc", code="QuotaFailure", quota_failure=QuotaFailure(violations=failures))
    status = Status(code=8, message="a quota", details=[REGISTRY.pack_any(why)])
    failed = Operation(id="op-1", created_at=NOW, status=status)
    lacks = group(node_count=3)
    said = "operation op-1 has failed: a quota; quota vpc.ipv4-address.public.count: 4 requested, the limit is 3"
    assert problems(lacks, [failed]) == (said,)
    assert problems(group(), [failed]) == ()
    assert problems(lacks, [RUNNING, failed]) == ()
    for code in (0, 10):
        assert problems(lacks, [Operation(id="op-2", created_at=NOW, status=Status(code=code)), failed]) == ()
