"""What can never be is refused when the DAG is parsed; what templates make of it, when the task runs."""

from __future__ import annotations

import json
import re
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_soperator.health.assessment import HealthQuery
from airflow_provider_soperator.operators.nodes import ReplaceNodesOperator
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger
from airflow_provider_soperator.work.protocols import Watch, failed, refused, succeeded
from tests.unit.operators.task_runs import TaskRun

FOUND, BEGUN = "2026-11-22T02:00:00+00:00", "2026-11-22T01:00:00+00:00"
MISTAKES: list[tuple[type[Any], dict[str, Any], str]] = [
    (NodeHealthSensor, {"target_state": "well"}, "target_state must be one of 'healthy', 'unhealthy', 'any'"),
    (NodeHealthSensor, {"kinds": ["hardware"]}, "unknown kind hardware of findings"),
    (NodeHealthSensor, {"kinds": "hardware"}, "unknown kind hardware of findings"),
    (NodeHealthSensor, {"nodes": "worker-[0"}, "worker-"),
    (ReplaceNodesOperator, {"nodes": "worker-0", "max_parallel": "half"}, "max_parallel must be a number of nodes"),
    (ReplaceNodesOperator, {"nodes": "worker-0", "mode": "kill"}, "mode must be one of 'asap', 'requeue', 'force'"),
    (ReplaceNodesOperator, {"nodes": "worker-0", "since": "noon"}, "since='noon' is not a date and time"),
]


@pytest.mark.parametrize(("operator", "options", "says"), MISTAKES)
def test_it_is_refused_when_the_dag_is_parsed(operator: type[Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        operator(task_id="task", **options)


@pytest.mark.parametrize(("operator", "options", "says"), MISTAKES)
def test_it_is_refused_when_it_was_rendered(operator: type[Any], options: dict[str, Any], says: str) -> None:
    templates = dict.fromkeys(options, "{{ params.x }}")
    task = operator(task_id="task", **templates, deferrable=True)
    for name, value in options.items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException) as refused:
        task.execute({"ti": None})
    assert says in str(refused.value)


def test_nobody_of_that_name_can_own_a_drain() -> None:
    task = ReplaceNodesOperator(task_id="task", nodes="worker-0", drain_owner="night shift")
    with pytest.raises(AirflowFailException, match="'night shift' cannot own a drain"):
        task.execute({"ti": None})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(("tries", "since", "counts"), [(1, FOUND, FOUND), (2, FOUND, FOUND), (2, None, BEGUN)])
def test_a_machine_that_is_newer_than_the_finding_counts_as_new(tries: int, since: str | None, counts: str) -> None:
    """Also if a person had to approve first: Soperator may have replaced it meanwhile."""
    task = ReplaceNodesOperator(task_id="task", nodes="worker-0", since=since)
    context: Any = {
        "ti": SimpleNamespace(try_number=tries),
        "dag_run": SimpleNamespace(start_date=datetime.fromisoformat(BEGUN)),
    }
    assert task.work(context).since == datetime.fromisoformat(counts)


def test_a_sensor_is_deferred_with_what_it_watches() -> None:
    sensor = NodeHealthSensor(
        task_id="healthy", nodes="worker-[0-1]", kinds="pod", prometheus_conn_id="p", deferrable=True, poke_interval=5
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(TaskRun().begin())
    trigger: Any = deferred.value.trigger
    watch: Any = Watch.read(json.loads(json.dumps(trigger.serialize()[1]))["watch"])
    assert watch.watched == HealthQuery(nodes=("worker-0", "worker-1"), kinds=("pod",))
    assert (watch.witnesses.kubernetes_conn_id, watch.witnesses.prometheus_conn_id) == (None, "p")
    assert sensor.execute_complete({}, succeeded({"worker-0": []})) == {"worker-0": []}
    with pytest.raises(AirflowFailException, match="there is no node"):
        sensor.execute_complete({}, refused("there is no node worker-9"))
    with pytest.raises(AirflowException, match="does not answer"):
        sensor.execute_complete({}, failed("Prometheus does not answer"))


def test_one_name_needs_no_list() -> None:
    one: Any = {"checks": "all-reduce", "node_labels": "host"}
    watch: Any = NodeHealthSensor(task_id="healthy", **one).watch()
    assert (watch.witnesses.checks, watch.witnesses.node_labels) == (("all-reduce",), ("host",))
    assert (
        NodeUnhealthyTrigger(**one).serialize()
        == NodeUnhealthyTrigger(checks=["all-reduce"], node_labels=["host"]).serialize()
    )


def test_a_watcher_of_what_is_no_list_of_nodes() -> None:
    with pytest.raises(ValueError, match="worker-"):
        NodeUnhealthyTrigger(nodes="worker-[0")
