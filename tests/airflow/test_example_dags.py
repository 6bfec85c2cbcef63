"""The example DAGs run as they stand, side by side."""

from __future__ import annotations

import pytest

from sandbox.airflow.beside import DAGS
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

#: Capacity has tests of its own (test_shifts.py), as others have to do without what it moves.
FILES = sorted(file for file in DAGS.glob("*.py") if file.stem != "gpu_shifts")


@pytest.fixture(scope="module")
def runs(stack: Stack) -> dict[str, Run]:
    return {dag.dag_id: dag.trigger() for dag in [stack.add_file(file) for file in FILES]}


def states(run: Run) -> dict[str, list[str]]:
    """Of each task, once its run is over; of a mapped one all."""
    run.stack.wait(f"{run.dag_id} is over", lambda: run.state() in ("success", "failed"), 240)
    found: dict[str, list[str]] = {}
    for task in run.tasks():
        found.setdefault(task["task_id"], []).append(task["state"])
    return found


def test_there_is_no_other(runs: dict[str, Run]) -> None:
    assert set(runs) == {"sweep", "tidy_up", "train_pipeline"}


def test_train_pipeline(runs: dict[str, Run], slurm: Cluster) -> None:
    run = runs["train_pipeline"]
    stages = {f"model.{stage}" for stage in ("prepare", "train", "evaluate")}
    assert states(run) == {task: ["success"] for task in stages | {"model.submit", "model.cancel_rest", "best"}}
    assert run.xcom("model.submit").keys() == stages
    trained = run.xcom("model.train")["parts"].values()
    # Each element had all GPUs of a node, so they ran on several, of which all but one were off at first.
    assert [part["state"] for part in trained] == ["COMPLETED"] * 4
    assert len({part["nodes"] for part in trained}) > 1
    assert "epoch 20 of 20" in run.log("model.train")
    best = run.xcom("best")
    assert best["learning_rate"] == 0.3
    assert best["slope"] == pytest.approx(3, abs=0.1)
    assert best["offset"] == pytest.approx(2, abs=0.1)


def test_sweep(runs: dict[str, Run]) -> None:
    run = runs["sweep"]
    found = states(run)
    # The rate at which the steps grow, with and without momentum.
    assert sorted(found.pop("fit")) == ["skipped"] + ["success"] * 5
    assert found == {"grid": ["success"], "best": ["success"]}
    assert run.xcom("best")["loss"] < 1e-9
    names = {task["rendered_map_index"] for task in run.tasks()}
    assert "rate 0.1, momentum 0.5" in names


def test_tidy_up(runs: dict[str, Run]) -> None:
    run = runs["tidy_up"]
    assert states(run) == {"queue_is_empty": ["success"], "tidy": ["success"]}
    assert run.xcom("queue_is_empty")["count"] == 0
    assert "train_pipeline" in run.log("tidy")
    assert run.xcom("tidy")["nodes"].startswith("worker-cpu-")
