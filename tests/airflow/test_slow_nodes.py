"""Figures that a task keeps: sensors find the slow node, in a worker and in the triggerer; a watcher tells of it."""

from __future__ import annotations

import pytest

from tests.airflow.stack import Stack
from tests.airflow.test_events import payloads

HEAD = """
from airflow.sdk import Asset, AssetWatcher

from airflow_provider_soperator.health.figures import keep_figures
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger

COUNTED = {"kinds": ["slow"], "checks": ["measured"]}
watched = Asset(
    "slow_nodes",
    watchers=[AssetWatcher(name="slow_nodes", trigger=NodeUnhealthyTrigger(**COUNTED, poll_interval=1))],
)
"""
MEASURE = """
@task
def keep():
    return [keep_figures("measured", {"worker-0": {"busbw": value}}) for value in (480, 481, 482, 300)]

options = {"target_state": "unhealthy", "poke_interval": 1, **COUNTED}
keep() >> [NodeHealthSensor(task_id="poke", **options), NodeHealthSensor(task_id="defer", deferrable=True, **options)]
"""
HEARD = """
@task
def heard(*, triggering_asset_events):
    return [event.extra["payload"]["node"] for event in triggering_asset_events[watched]]

heard()
"""
WORDS = "busbw of measured was 300: 38% less than 481, the median in its 3 runs before"


# Each of them sees it in tests/integration/test_check_figures.
@pytest.mark.soak
def test_a_node_that_has_become_slow_is_found_everywhere(stack: Stack) -> None:
    watching = stack.add_dag("slow_nodes", HEARD, head=HEAD, schedule="[watched]")
    run = stack.add_dag("measure", MEASURE, head=HEAD).trigger()
    for task_id in ("poke", "defer"):
        run.wait(task_id, "success")
        [finding] = run.xcom(task_id)["worker-0"]
        assert (finding["kind"], finding["what"]) == ("slow", WORDS)
    assert run.xcom("keep")[-1] == {"worker-0": WORDS}
    [told] = stack.wait("the watcher has told of it", lambda: payloads(watching))
    assert (told["node"], told["findings"][0]["what"]) == ("worker-0", WORDS)
