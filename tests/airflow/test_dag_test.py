"""``dag.test()``: what people debug their DAGs with, without any of Airflow's processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sandbox.airflow.home import AirflowHome, without_airflow
from sandbox.settings import AirflowPorts
from tests.airflow.stack import free_ports
from tests.integration.cluster import Cluster

SOURCE = """
import json
from airflow.sdk import DAG, task
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
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
    block = {
        "block": "capacityblockgroup-e00sandbox",
        "targets": [
            SlurmNodesTarget(name="training", nodes="worker-[0-3]"),
            NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference"),
        ],
        "poll_interval": 0.5,
    }
    there = ShiftCapacityOperator(
        task_id="there", desired={"training": 3, "inference": 1}, deferrable=True, **block
    )
    there >> ShiftCapacityOperator(task_id="back", desired={"training": 4, "inference": 0}, **block)

if __name__ == "__main__":
    run = dag.test()
    print("\\nENDED", json.dumps({ti.task_id: ti.state for ti in run.get_task_instances()}))
"""


def test_a_dag_is_debugged(slurm: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "dags" / "debugged.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    # A home of its own: a scheduler that has the same database would run the same tasks.
    home = AirflowHome(tmp_path, file.parent, AirflowPorts(*free_ports(3)))
    environment = without_airflow() | home.environment(slurm.access["airflow_connections"])
    home.make(environment)
    said = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    ended = [line for line in said.stdout.splitlines() if line.startswith("ENDED ")]
    assert ended, said.stdout[-3000:] + said.stderr[-3000:]
    assert json.loads(ended[0].removeprefix("ENDED ")) == {
        "worker": "success",
        "deferred": "success",
        "neither": "success",
        "sensor": "success",
        "failing": "failed",
        "after": "upstream_failed",
        "there": "success",
        "back": "success",
    }, said.stdout[-6000:]
    log = said.stdout + said.stderr
    assert log.count("I am ") == 3
    assert "failed on worker-" in log
    assert "with exit code 3" in log
    assert "Everything is where it shall be: training 3, inference 1" in log
