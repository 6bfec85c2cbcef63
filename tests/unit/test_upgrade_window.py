"""The shape of the upgrade's DAG: what closes a cluster, what alone opens it, and what speaks whatever fails."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.states import NodeState
from sandbox.cloud.active_checks import shipped

FILE = Path(__file__).parents[2] / "dags/upgrade_window.py"


@pytest.fixture(scope="module")
def dag() -> DAG:
    bag = DagBag(FILE)
    assert bag.import_errors == {}
    return bag.dags["upgrade_window"]


def test_it_is_opened_after_all_else_has_succeeded(dag: DAG) -> None:
    reopen = dag.get_task("reopen")
    others = set(dag.task_ids) - {"reopen", "tell"}
    assert reopen.get_flat_relative_ids(upstream=True) == others
    assert {dag.get_task(name).trigger_rule for name in {"reopen", *others}} == {TriggerRule.ALL_SUCCESS}


def test_no_clock_opens_it(dag: DAG) -> None:
    assert dag.get_task("reserve").end is None
    assert dag.get_task("reserve").duration is None


def test_a_run_that_is_cleared_has_the_reservation_that_it_had(dag: DAG) -> None:
    window: Any = dag.get_task("window")
    runs = [
        SimpleNamespace(
            run_id="manual__2026-11-22T02:00:00+00:00_x1", start_date=datetime(2026, 11, day, tzinfo=timezone.utc)
        )
        for day in (22, 23)
    ]
    first, cleared = (window.python_callable({"starts": None, "hours": 2}, run) for run in runs)
    assert first["id"] == cleared["id"] == "manual__20261122T0200000000_x1"


def test_what_needs_nodes_to_itself_is_tried_within_the_reservation(dag: DAG) -> None:
    reservation = dag.get_task("reserve").name
    assert dag.get_task("verify.smoke").job["reservation"] == reservation
    assert dag.get_task("verify.jail").job["reservation"] == reservation


def slurm_has(monkeypatch: pytest.MonkeyPatch, *states: str) -> None:
    """Slurm has the nodes ``worker-0`` and so on, in states with or without a reason."""
    parted = [state.partition(": ") for state in states]
    nodes = [
        Node(name=f"worker-{number}", state=NodeState.parse(state), reason=reason)
        for number, (state, _, reason) in enumerate(parted)
    ]
    monkeypatch.setattr(SlurmHook, "client", lambda self: nullcontext(SimpleNamespace(ask=lambda request: nodes)))


def test_nodes_that_others_have_drained_do_not_keep_the_cluster_closed(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choose: Any = dag.get_task("choose")
    drains = "airflow:upgrade_window: upgrade", "[user_problem] disk", "airflow:days: lent"
    slurm_has(monkeypatch, "IDLE", *(f"MIXED+DRAIN: {reason}" for reason in drains))
    found = choose.python_callable({"nodes": "worker-[0-3]"}, dag)
    assert (found["nodes"], set(found["left"])) == ("worker-[0-1]", {"worker-2", "worker-3"})
    said = capsys.readouterr().out
    assert "Left out, but for the reservation: worker-2 is drained: [user_problem] disk (a job has left" in said
    with pytest.raises(AirflowFailException, match="others have drained all of the nodes, and nothing is changed"):
        choose.python_callable({"nodes": "worker-[2-3]"}, dag)
    # It is read when the window begins, and all are reserved: one that heals meanwhile takes no jobs.
    assert choose.upstream_task_ids == {"begins"}
    tasks: dict[str, Any] = {task.task_id: task for task in dag.tasks}
    assert tasks["reserve"].nodes == "{{ params.nodes }}"
    nodes = [tasks[name].nodes for name in ("drain", "verify.undrain")]
    nodes += [tasks[name].job["nodelist"] for name in ("verify.smoke", "verify.jail")]
    assert set(nodes) == {"{{ ti.xcom_pull('choose')['nodes'] }}"}


def test_jobs_on_nodes_that_are_left_out_are_waited_for_before_the_change(
    dag: DAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty: Any = dag.get_task("empty")
    params = {"nodes": "worker-[0-1]"}
    slurm_has(monkeypatch, "IDLE+DRAIN: airflow:upgrade_window: upgrade", "MIXED+DRAIN: disk swap", "MIXED")
    assert not empty.python_callable(params)
    slurm_has(monkeypatch, "IDLE+DRAIN: airflow:upgrade_window: upgrade", "IDLE+DRAIN: disk swap", "MIXED")
    assert empty.python_callable(params)
    assert empty.upstream_task_ids == {"drain"}
    assert empty.downstream_task_ids == {"backup"}


@pytest.mark.parametrize("soperator", ["4.1", "5.0"])
def test_the_check_is_one_of_the_release_that_has_come(dag: DAG, soperator: str) -> None:
    assert dag.get_task("verify.check").upstream_task_ids == {"verify.ready"}
    assert dag.params["check"] in [one["metadata"]["name"] for one in shipped(soperator)]


def test_whatever_fails_it_is_told_and_the_run_fails(dag: DAG) -> None:
    tell = dag.get_task("tell")
    assert (tell.is_teardown, tell.on_failure_fail_dagrun) == (True, False)
    assert dag.get_task("reserve").is_setup
    assert {"reserve", "reopen"} <= tell.upstream_task_ids


def test_a_window_that_begins_at_once_is_not_taken_for_a_lost_worker(dag: DAG) -> None:
    # Airflow fails a task that is queued again before it is told of the end of the deferral.
    begins: Any = dag.get_task("begins")
    begins.target_time = "2025-11-22T02:00:00+00:00"
    begins.execute({"ti": SimpleNamespace(get_first_reschedule_date=lambda context: None)})
    assert begins.mode == "reschedule"
