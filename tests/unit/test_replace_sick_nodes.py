"""What the DAG that heals nodes decides: to heal at once, to ask a person, or neither."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TriggerRule

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import UnknownNode
from airflow_provider_soperator.slurm.states import NodeState

FILE = Path(__file__).parents[2] / "dags/replace_sick_nodes.py"
BROKEN = {"kind": "hardware_problem", "takes_machine": True, "heals": False, "what": "a GPU is lost"}
STUCK = {"kind": "boot_failed", "takes_machine": False, "heals": False, "what": "it did not boot"}
BUSY = {"kind": "kill_task_failed", "takes_machine": False, "heals": True, "what": "a task is left"}


@pytest.fixture(scope="module")
def dag() -> DAG:
    bag = DagBag(FILE)
    assert bag.import_errors == {}
    return bag.dags["replace_sick_nodes"]


@pytest.fixture
def decide(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On a cluster of twenty nodes, of which two may be ill."""
    nodes = [Node(name=f"worker-{number}", state=NodeState.parse("IDLE")) for number in range(20)]
    client = SimpleNamespace(ask=lambda request: nodes)
    monkeypatch.setattr(SlurmHook, "client", lambda self: nullcontext(client))

    def decide(form: list[str], *told: str, **found: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        findings = {name.replace("_", "-"): [one] for name, one in found.items()}
        judge: Any = dag.get_task("judge")
        judged = judge.python_callable({"form": form, "events": list(told)}, findings, "manual__1")
        branch: Any = dag.get_task("decide")
        return branch.python_callable(judged), judged

    return decide


def test_a_few_are_healed_at_once(decide: Any) -> None:
    where, judged = decide(["worker-[0-1]"], worker_0=BROKEN, worker_1=STUCK, worker_7=BUSY)
    assert where == "reserve"
    assert (judged["broken"], judged["stuck"]) == (["worker-0"], ["worker-1"])
    assert judged["treated"] == ["worker-0", "worker-1"]


def test_if_many_are_ill_a_person_is_asked_whichever_the_event_names(decide: Any) -> None:
    where, judged = decide(["worker-0"], worker_0=BROKEN, worker_1=BROKEN, worker_2=STUCK)
    assert (where, judged["treated"]) == ("ask", ["worker-0"])
    assert judged["ill"] == "3 of 20 nodes are ill (worker-[0-2])"


def test_who_is_not_named_or_gets_well_is_left_alone(decide: Any) -> None:
    assert decide(["worker-0", "worker-7"], worker_1=BROKEN, worker_7=BUSY)[0] is None
    with pytest.raises(UnknownNode, match="there is no node worker-20"):
        decide(["worker-20"], worker_1=BROKEN)


def test_a_node_that_is_gone_since_it_was_told_of_keeps_no_other_ill(
    decide: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    where, judged = decide([], "worker-0", "worker-20", worker_0=BROKEN, worker_20=BROKEN)
    assert (where, judged["treated"], judged["broken"]) == ("reserve", ["worker-0"], ["worker-0"])
    assert "worker-20: not in Slurm any more\n" in capsys.readouterr().out


def test_nothing_is_touched_before_the_answer(dag: DAG) -> None:
    reserve = dag.get_task("reserve")
    assert reserve.upstream_task_ids >= {"decide", "ask"}
    assert reserve.trigger_rule == TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
    # It is skipped with both branches, after a refusal, too.
    assert dag.get_task("healed").upstream_task_ids == {"replace", "power_up"}
    assert dag.get_task("ask").get_flat_relative_ids(upstream=False) >= {"reserve", "replace", "power_down", "trial"}
    # The answer may take hours, in which a node may have come up.
    power_down: Any = dag.get_task("power_down")
    assert power_down.mode == "asap"


def test_the_nodes_of_all_events_are_healed_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Airflow 3.4 on that is to be asked for, where each event has a run of its own by default."""
    asked = []

    def timetable(assets: Any, *, batch_asset_events: bool) -> Any:
        asked.append(batch_asset_events)
        return assets

    monkeypatch.setattr("airflow.sdk.AssetTriggeredTimetable", timetable, raising=False)
    assert DagBag(FILE).import_errors == {}
    assert asked == [True]
