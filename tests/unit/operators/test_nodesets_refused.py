"""Sizes of NodeSets that can never be, refused when the DAG is parsed or before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.cluster import ScaleNodeSetOperator


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
