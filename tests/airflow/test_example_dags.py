"""Example DAGs run as they stand, side by side; others have tests of their own."""

from __future__ import annotations

import pytest

from sandbox.airflow.beside import DAGS
from tests.airflow.stack import Run, Stack


@pytest.fixture(scope="module")
def runs(stack: Stack) -> dict[str, Run]:
    dags = [stack.add_file(DAGS / f"{name}.py") for name in ("estimate_pi", "sweep", "tidy_up", "tune")]
    stack.call("PATCH", "/dags/tidy_up", json={"is_paused": False})
    return {dag.dag_id: dag.trigger() for dag in dags}


def states(run: Run) -> dict[str, list[str]]:
    """Of each task, once its run is over; of a mapped one all."""
    run.stack.wait(f"{run.dag_id} is over", lambda: run.state() in ("success", "failed"))
    found: dict[str, list[str]] = {}
    for task in run.tasks():
        found.setdefault(task["task_id"], []).append(task["state"])
    return found


def test_sweep(runs: dict[str, Run]) -> None:
    run = runs["sweep"]
    found = states(run)
    # The rate at which the steps grow, with and without momentum.
    assert sorted(found.pop("fit")) == ["skipped"] + ["success"] * 5
    assert found == {"grid": ["success"], "best": ["success"]}
    assert run.xcom("best")["loss"] < 1e-9
    names = {task["rendered_map_index"] for task in run.tasks()}
    assert "rate 0.1, momentum 0.5" in names


def test_estimate_pi(runs: dict[str, Run]) -> None:
    run = runs["estimate_pi"]
    assert states(run) == {"seeds": ["success"], "throw": ["success"] * 4, "mean": ["success"]}
    assert run.xcom("mean") == pytest.approx(3.14159, abs=0.02)


def test_tune(runs: dict[str, Run]) -> None:
    run = runs["tune"]
    assert states(run) == {"rates": ["success"], "fit": ["success"] * 4, "best": ["success"]}
    assert run.xcom("best")["rate"] == 0.3
    assert {task["hostname"].startswith("worker") for task in run.tasks() if task["task_id"] == "fit"} == {True}


def test_tidy_up(runs: dict[str, Run]) -> None:
    run = runs["tidy_up"]
    assert states(run) == {"queue_is_empty": ["success"], "tidy": ["success"]}
    assert run.xcom("queue_is_empty")["count"] == 0
    assert "train_pipeline" in run.log("tidy")
    assert run.xcom("tidy")["nodes"].startswith("worker-cpu-")
