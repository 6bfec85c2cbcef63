"""What could never be carried out is refused when the DAG is parsed."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_soperator.capacity.order import DesiredAllocation, Timeouts
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import (
    BoughtNodes,
    KubernetesScaleTarget,
    NebiusNodeGroupTarget,
    SlurmNodesTarget,
    Target,
)
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator

HOUR = timedelta(hours=1)


def shift(**options: Any) -> ShiftCapacityOperator:
    return ShiftCapacityOperator(
        task_id="shift",
        targets=[
            SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
            NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference"),
        ],
        block="capacityblockgroup-e00example",
        **{"desired": {"training": 4}, **options},
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "now"}, "mode must be 'idle', 'asap' or 'force', got 'now'"),
        ({"force_after": HOUR}, "force_after needs mode='force', got 'asap'"),
        ({"rollback": True}, "rollback must be 'none' or 'all', got True"),
        ({"desired": {"trainig": 4}}, "unknown target trainig: did you mean 'training'?"),
        ({"desired": {"nights": 4}}, "unknown target nights: the targets are training, inference"),
        ({"if_running": "queue"}, "if_running must be 'wait' or 'fail', got 'queue'"),
        ({"timeouts": {"ready": "1h"}}, "timeouts is {'ready': '1h'}: write Timeouts"),
        ({"mode": "force", "signal": "TREM"}, "unknown signal 'TREM'"),
        ({"mode": "force", "force_after": 2 * HOUR}, "jobs are ended 2:00:00 after nodes begin to leave"),
        ({"mode": "force", "grace": 2 * HOUR}, "jobs are ended 2:00:00 after nodes begin to leave"),
        (
            {"mode": "force", "force_after": HOUR, "transfer": HOUR},
            "waits only 2:00:00 for a node: make force_after shorter",
        ),
    ],
)
def test_mistakes_are_found_when_the_dag_is_parsed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CapacityMistake, match=said):
        shift(**options)


def test_a_duration_of_a_shift_that_is_none_is_found_when_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="transfer must be a timedelta, such as"):
        shift(transfer="20m")


def test_a_shift_begins_early_enough_for_a_machine_to_arrive_if_it_has_a_lead() -> None:
    schedule = CapacitySchedule(
        timezone="UTC", windows=[Window("daily 00:00 - 24:00", {"training": 1, "inference": 1})], lead="20m"
    )
    for lead, transfer in (("20m", HOUR / 3), ("0m", HOUR)):
        shift(desired=None, schedule=replace(schedule, lead=lead), transfer=transfer)
    with pytest.raises(CapacityMistake, match="takes 1:00:00, but the schedule's lead is 0:20:00: make the lead"):
        shift(desired=None, schedule=schedule, transfer=HOUR)


GROUP = NebiusNodeGroupTarget(name="inference", node_group="group-1")
BUYING = replace(GROUP, fallback=BoughtNodes(node_group="bought", max_nodes=1, gpu_hours=8))
WORKLOAD = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)


@pytest.mark.parametrize(
    ("one", "fields", "shared"),
    [
        (SlurmNodesTarget(name="training", nodes="worker-[0-4]"), {"nodes": "worker-[4-7]"}, "worker-4"),
        (SlurmNodesTarget(name="training", nodes="worker-[0-4]"), {"nodes": "worker-[5-7]"}, ""),
        (SlurmNodesTarget(name="training", nodes="worker-[0-4]"), {"slurm_conn_id": "another"}, ""),
        (GROUP, {"gpus_per_unit": 4}, "group-1"),
        (GROUP, {"node_group": "group-2"}, ""),
        (BUYING, {"node_group": "group-2"}, "bought"),
        (WORKLOAD, {"gpus_per_unit": 4}, "vllm"),
        (WORKLOAD, {"namespace": "staging"}, ""),
    ],
)
def test_two_targets_have_nothing_in_common(one: Target, fields: dict[str, Any], shared: str) -> None:
    two = [one, replace(one, name="other", **fields)]
    said = pytest.raises(CapacityMistake, match=f"{one.name} and other both have {shared}: let one of them have it")
    with said if shared else nullcontext():
        ShiftCapacityOperator(task_id="shift", targets=two, block="block", desired={"other": 1})


def test_a_node_group_is_under_slurm_nodes_or_a_target_of_its_own() -> None:
    nodes = SlurmNodesTarget(name="training", nodes="worker-[0-4]", node_groups=("group-1",))
    with pytest.raises(CapacityMistake, match="training and inference both have group-1: let one of them have it"):
        ShiftCapacityOperator(task_id="shift", targets=[nodes, GROUP], block="block", desired={"training": 1})


@pytest.mark.parametrize("nodes", ["worker-[0-", "worker-[7-0]", ""])
def test_a_target_names_its_nodes(nodes: str) -> None:
    with pytest.raises(CapacityMistake, match=f"^training: '{re.escape(nodes)}' is not a list of nodes"):
        SlurmNodesTarget(name="training", nodes=nodes)


def test_jobs_may_be_ended_as_late_as_the_shift_waits_for() -> None:
    operator = shift(mode="force", force_after=2 * HOUR, timeouts=Timeouts(release=3 * HOUR), signal="SIGUSR1")
    assert operator.signal == "USR1"


@pytest.mark.parametrize(("if_running", "waits"), [("wait", True), ("fail", False)])
def test_a_shift_waits_for_another_one_unless_it_is_to_fail_then(if_running: str, waits: bool) -> None:
    context: Any = {"ti": SimpleNamespace(dag_id="shifts", run_id="r", task_id="shift", map_index=-1)}
    operator = shift(if_running=if_running)
    operator._airflow = "a"
    wanted = DesiredAllocation({"training": 4}, datetime.now(timezone.utc), None, "by hand")
    assert operator._order(context, wanted).wait_for_lease is waits


def test_a_shift_whose_window_was_over_before_it_began_is_skipped() -> None:
    event = {"status": "success", "result": {"superseded": "the time for night was over"}}
    with pytest.raises(AirflowSkipException, match="the time for night was over"):
        shift().execute_complete({}, event)  # type: ignore[typeddict-item]


def test_a_partial_shift_is_a_success_that_says_what_is_missing() -> None:
    missing = ["inference has 3 of 4 nodes ready"]
    result = {"state": "partial", "allocation": {"inference": 3}, "missing": missing, "figures": {}}
    assert shift().execute_complete({}, {"status": "success", "result": result}) == result  # type: ignore[typeddict-item]
