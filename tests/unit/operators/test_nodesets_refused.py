"""Sizes of NodeSets that can never be, and new nodes that another try must not take for old ones."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.cluster import ScaleNodeSetOperator
from tests.unit.operators.task_runs import TaskRun


def scale(**options: Any) -> ScaleNodeSetOperator:
    return ScaleNodeSetOperator(task_id="scale", **{"nodeset": "worker", "replicas": 1, **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replicas": -1}, "replicas must be >= 0, got -1"),
        ({"replicas": "many"}, "replicas must be a number, got 'many'"),
        ({"mode": "kill"}, "mode must be one of 'asap', 'force', got 'kill'"),
    ],
)
def test_when_the_dag_is_parsed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scale(**options)


def test_templates_are_looked_at_once_they_are_rendered() -> None:
    task = scale(replicas="{{ params.replicas }}", mode="{{ params.mode }}", drain_owner="{{ params.owner }}")
    order = "after Kill task failed"
    for field, value in (("replicas", "-2"), ("mode", "now"), ("drain_owner", "a b"), ("reason", order)):
        broken = scale()
        setattr(broken, field, value)
        with pytest.raises(AirflowFailException, match=value):
            broken.execute({"ti": None})  # type: ignore[typeddict-item]
    assert {"replicas", "mode", "drain_owner"} <= set(task.template_fields)


def test_a_new_node_that_failed_the_first_try_was_not_out_of_service_before_the_second() -> None:
    run = TaskRun("scale")
    first, second = (scale().work(run.begin()) for _ in range(2))
    assert first.since != second.since == run.start_date
    # The time limit is that of each try.
    assert second.deadline >= first.deadline
