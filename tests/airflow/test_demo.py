"""The demonstration from end to end, as its users start, interrupt and end it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import access
from sandbox.airflow.api import AirflowApi, DagRun
from sandbox.airflow.beside import Airflow
from sandbox.airflow.home import COMPONENTS
from sandbox.lifecycle import Sandbox
from tests.integration.outside import command_line, eventually, interrupted
from tests.integration.test_lifecycle import remains

# One story: a whole demonstration for each test would take minutes.
pytestmark = [pytest.mark.lane("demo"), pytest.mark.in_order]

NAME = f"demo-{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def made() -> Iterator[Sandbox]:
    said = command_line("up", "--name", NAME, "--workers=4")
    assert said.returncode == 0, said.stderr
    yield Sandbox.existing(NAME)
    ports = Sandbox.existing(NAME).settings.ports
    assert command_line("down", "--name", NAME).returncode == 0
    assert remains(NAME, (ports.ssh, *ports.airflow)) == []


def dag_runs(api: AirflowApi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.call("GET", "/dags/train_pipeline/dagRuns")["dag_runs"]
    return found


def test_an_interrupted_start_leaves_the_sandbox_as_it_was(made: Sandbox) -> None:
    before = made.init.processes()
    ended = interrupted("demo", "--name", NAME, at="starting Airflow's api-server")
    assert ended == (130, "sandbox: interrupted; run the same command again to go on\n")
    airflow = Airflow(made)
    assert not airflow.exists
    assert not any(airflow.running().values())
    after = made.init.processes()
    assert {name: after[name]["pid"] for name in before} == {name: before[name]["pid"] for name in before}


def test_it_runs_and_says_where_to_look(made: Sandbox) -> None:
    said = command_line("demo", "--name", NAME)
    assert said.returncode == 0, said.stdout + said.stderr
    for part in ("model.prepare      success", "model.train        success", "4 COMPLETED", "powering up", "loss"):
        assert part in said.stdout
    airflow = Airflow(made)
    assert airflow.home.url in said.stdout
    # No login is asked for.
    with urllib.request.urlopen(airflow.home.url) as page:
        assert page.status == 200
    # Its first page has nothing in red, and that of its connections has something to look at and to test.
    assert airflow.api.call("GET", "/plugins/importErrors")["import_errors"] == []
    listed = airflow.api.call("GET", "/connections")["connections"]
    facts = access.describe(made.settings)["airflow_connections"]
    assert {f"AIRFLOW_CONN_{one['connection_id'].upper()}" for one in listed} == facts.keys()
    [default] = [one for one in listed if one["connection_id"] == "soperator_default"]
    tested = {name: default[name] for name in ("connection_id", "conn_type", "host", "port", "login", "extra")}
    assert airflow.api.call("POST", "/connections/test", json=tested)["status"]
    status = command_line("status", "--name", NAME)
    assert status.returncode == 0
    assert f"127.0.0.1:{airflow.home.ports.api}" in status.stdout


def test_the_example_has_done_what_it_says(made: Sandbox) -> None:
    api = Airflow(made).api
    [run] = [DagRun(api, found["dag_id"], found["dag_run_id"]) for found in dag_runs(api)]
    stages = {f"model.{stage}" for stage in ("prepare", "train", "evaluate")}
    states = {task["task_id"]: task["state"] for task in run.tasks()}
    assert states == dict.fromkeys(stages | {"model.submit", "model.cancel_rest", "best"}, "success")
    assert run.xcom("model.submit").keys() == stages
    trained = run.xcom("model.train")["parts"]
    # Each element had all GPUs of a node, so they ran on several, of which all but one were off at first.
    assert [part["state"] for part in trained] == ["COMPLETED"] * 4
    assert len({part["nodes"] for part in trained}) > 1
    assert "epoch 20 of 20" in run.log("model.train")
    best = run.xcom("best")
    assert best["learning_rate"] == 0.3
    assert best["slope"] == pytest.approx(3, abs=0.1)
    assert best["offset"] == pytest.approx(2, abs=0.1)

    # Commands that are told no more than its home have the same DAGs.
    drawn = subprocess.run(
        [sys.executable, "-m", "airflow_provider_soperator", "schedule", "--days", "1"],
        env={**os.environ, "AIRFLOW_HOME": str(Airflow(made).home.folder)},
        capture_output=True,
        text=True,
    )
    assert drawn.stdout.startswith("gpu_shifts: block capacityblockgroup-e00sandbox"), drawn.stderr


@pytest.mark.soak
def test_what_a_crash_has_ended_is_started_again(made: Sandbox) -> None:
    airflow = Airflow(made)
    if not airflow.exists:
        assert command_line("demo", "--name", NAME).returncode == 0
    [run] = dag_runs(airflow.api)
    outer = made.init.outer()
    assert outer is not None
    outer.kill()
    eventually("the sandbox has ended", lambda: not made.init.alive())
    said = command_line("up", "--name", NAME)
    assert said.returncode == 0, said.stderr
    assert airflow.running() == dict.fromkeys(COMPONENTS, True)
    [again] = dag_runs(Airflow(made).api)
    assert (again["dag_run_id"], again["state"]) == (run["dag_run_id"], "success")


def test_a_sandbox_that_is_too_small_is_refused() -> None:
    said = command_line("demo", "--name", f"{NAME}-small", "--gpus=4")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "sandbox: train_pipeline asks for 8 GPUs of a node: use --gpus 8 or more\n"
    assert remains(f"{NAME}-small") == []
