"""``dag.test()``, with which people debug DAGs without any of Airflow's processes; and two examples, run that way."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import pytest

from sandbox.airflow.beside import DAGS
from sandbox.airflow.home import AirflowHome, without_airflow
from sandbox.lifecycle import Sandbox
from sandbox.settings import AirflowPorts
from tests.airflow.stack import free_ports
from tests.integration.cluster import Cluster

SOURCE = """
from airflow.sdk import DAG, task
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.sensors.jobs import SlurmJobSensor

with DAG("debugged", schedule=None) as dag:
    common = {"command": "echo I am $SLURM_JOB_ID", "poll_interval": 1}
    worker = SbatchOperator(task_id="worker", **common)
    deferred = SbatchOperator(task_id="deferred", deferrable=True, **common)
    neither = SbatchOperator(task_id="neither", start_from_trigger=True, end_from_trigger=True, **common)
    failing = SbatchOperator(task_id="failing", deferrable=True, command="exit 3", poll_interval=1)
    sensor = SlurmJobSensor(task_id="sensor", job_id="{{ ti.xcom_pull('worker')['job_id'] }}", deferrable=True)
    worker >> sensor
    failing >> SbatchOperator(task_id="after", **common)
    with SbatchPipeline("model", default_args={"deferrable": True}):
        # The next job would wait for ever, if this task's states were not known.
        borne = SbatchOperator(task_id="borne", command="exit 4", on_finish={4: "succeed"}, poll_interval=1)
        borne >> SbatchOperator(task_id="next", **common)
    block = {
        "block": "capacityblockgroup-e00sandbox",
        "targets": [
            SlurmNodesTarget(name="training", nodes="worker-[0-1]"),
            NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference"),
        ],
        "poll_interval": 0.5,
    }
    there = ShiftCapacityOperator(
        task_id="there", desired={"training": 1, "inference": 1}, deferrable=True, **block
    )
    there >> ShiftCapacityOperator(task_id="back", desired={"training": 2, "inference": 0}, **block)
"""

#: What a file with a DAG ends in to be debugged.
RUN = """
if __name__ == "__main__":
    import json

    run = dag.test()
    print("\\nENDED", json.dumps({ti.task_id: ti.state for ti in run.get_task_instances()}))
"""


#: Runs one file after the other as `python` does. Each would import Airflow for seconds, and make its API anew.
PROGRAM = """
import os, runpy, sys, traceback

sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
for file in map(str.strip, sys.stdin):
    try:
        runpy.run_path(file, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    print("\\nOVER", flush=True)
"""


class Debugger:
    """A Python in which people run their DAG files, in an Airflow that has a database and no processes."""

    def __init__(self, dags: Path, environment: dict[str, str]) -> None:
        self.dags = dags
        self._python = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        with self._python:
            self._python.kill()

    def interrupt(self) -> None:
        self._python.send_signal(signal.SIGINT)

    def run(self, name: str, source: str) -> tuple[dict[str, str], str]:
        """What the tasks of a DAG have ended with, and all that was printed."""
        file = self.dags / name
        file.write_text(source + RUN)
        assert self._python.stdin
        assert self._python.stdout
        print(file, file=self._python.stdin, flush=True)
        said = list(takewhile(lambda line: line != "OVER\n", self._python.stdout))
        log = "".join(said)
        ended = [line for line in said if line.startswith("ENDED ")]
        assert ended, log[-6000:]
        return json.loads(ended[0].removeprefix("ENDED ")), log


@pytest.fixture(scope="module")
def debugger(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debugger]:
    folder = tmp_path_factory.mktemp("home")
    (folder / "dags").mkdir()
    home = AirflowHome(folder, folder / "dags", AirflowPorts(*free_ports(3)))
    access = json.loads(sandbox.paths.access.read_text())
    environment = without_airflow() | home.environment(access["airflow_connections"])
    home.make(environment)
    made = Debugger(home.dags, environment)
    yield made
    made.close()


def example(name: str, dags: Path) -> str:
    """An example DAG as it stands, under the name by which it is run, with the scripts beside it."""
    shutil.copytree(DAGS / "nightly_health", dags / "nightly_health", dirs_exist_ok=True)
    source = (DAGS / f"{name}.py").read_text()
    return source.replace(f"\n{name}()\n", f"\ndag = {name}()\n")


def test_a_dag_is_debugged(debugger: Debugger, cluster: Cluster) -> None:
    ended, log = debugger.run("debugged.py", SOURCE)
    assert ended == {
        "worker": "success",
        "deferred": "success",
        "neither": "success",
        "sensor": "success",
        "failing": "failed",
        "after": "upstream_failed",
        "model.submit": "success",
        "model.borne": "success",
        "model.next": "success",
        "model.cancel_rest": "success",
        "there": "success",
        "back": "success",
    }, log[-6000:]
    assert log.count("I am ") == 4
    assert "failed on worker-" in log
    assert "with exit code 3" in log
    assert "The shift is done: training 1, inference 1" in log


LONG = """
from airflow.sdk import DAG
from airflow_provider_soperator.operators.sbatch import SbatchOperator

with DAG("interrupted", schedule=None) as dag:
    SbatchOperator(task_id="long", command="sleep 3600", deferrable=True, poll_interval=1)
"""


def test_ctrl_c(debugger: Debugger, cluster: Cluster) -> None:
    with ThreadPoolExecutor() as beside:
        ends = beside.submit(debugger.run, "interrupted.py", LONG)
        job = cluster.wait("its job", lambda: ends.done() or cluster.run("squeue", "-h", "-tR", "-o%i").strip())
        debugger.interrupt()
        ended, log = ends.result()
    assert ended == {"long": "failed"}
    assert f"the task was told to end, and job {job} was cancelled" in log
    cluster.wait_job(str(job), "CANCELLED")


def test_the_window_of_an_upgrade(debugger: Debugger, cluster: Cluster) -> None:
    ended, log = debugger.run("window.py", example("upgrade_window", debugger.dags))
    assert set(ended.values()) == {"success"}, log[-6000:]
    assert "each of worker-0,worker-cpu-[0-1] is being drained" in log
    assert "worker-0,worker-cpu-[0-1] are open to all again" in log
    assert "No reservations" in cluster.run("scontrol", "show", "reservation")
    assert not any("DRAIN" in node.state for node in cluster.nodes().values())


def test_the_health_of_a_night(debugger: Debugger, cluster: Cluster) -> None:
    cluster.fault("node-drain", node="worker-cpu-0", reason="boot-disk-full")
    ended, log = debugger.run("night.py", example("nightly_health", debugger.dags))
    tasks = ("stats", "jail", "jail_figures", "which_checks", "check", "health", "report", "tell")
    assert ended == dict.fromkeys(tasks, "success"), log[-6000:]
    assert "1 nodes are ill\n  worker-cpu-0: [user_problem] boot_disk_full" in log
    assert "check create-user-soperatorchecks: Complete" in log
    assert re.search(r'{"node": "worker-[^}]*"seconds": {"create": {"p50": \d', log), log[-8000:]
