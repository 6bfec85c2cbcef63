"""The fixture ``slurm_sandbox`` in a project of somebody who tests a DAG of theirs, as sandbox/README.md has it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sandbox import lifecycle
from sandbox.airflow.home import AirflowHome, without_airflow
from sandbox.settings import AirflowPorts

# With a sandbox of its own.
pytestmark = pytest.mark.sandbox

README = Path(lifecycle.__file__).with_name("README.md").read_text()
DAG = """
from airflow.sdk import DAG
from airflow_provider_soperator.operators.sbatch import SbatchOperator

with DAG("training", schedule=None) as dag:
    SbatchOperator(task_id="train", command="echo trained", poll_interval=1)
"""
MORE = """
import os
from airflow.sdk import BaseHook

def test_connections(slurm_sandbox):
    assert os.environ["AIRFLOW_CONN_SOPERATOR_DEFAULT"] == slurm_sandbox.uri
    assert BaseHook.get_connection("ssh_default").get_uri().startswith("ssh://root@127.0.0.1")

def test_options(slurm_sandbox):
    nodes = slurm_sandbox.run("sinfo", "-hN", "-p", "main", "-o", "%N")
    assert nodes.split() == ["worker-0", "worker-1", "worker-cpu-0"]

def test_a_command_that_fails(slurm_sandbox):
    slurm_sandbox.run("scontrol", "show", "job", "7000")
"""


def test_people_test_their_dags(pytester: pytest.Pytester, tmp_path: Path) -> None:
    test, conftest = re.findall(r"```python\n(.*?)```", README, re.S)
    options = re.sub(r"return .*", 'return {"workers": 2, "static": 1}', conftest)
    pytester.makeconftest(options)
    pytester.makepyfile(test_training=test + MORE)
    dags = pytester.mkdir("dags")
    (dags / "training.py").write_text(DAG)
    pytester.makeini("[pytest]\npythonpath = dags\n")
    home = AirflowHome(tmp_path / "airflow", dags, AirflowPorts(1, 2, 3))
    environment = without_airflow() | home.environment({})
    home.make(environment)
    for name in os.environ.keys() - environment.keys():
        pytester._monkeypatch.delenv(name)
    for name, value in environment.items():
        pytester._monkeypatch.setenv(name, value)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*`scontrol show job 7000` ended with 1: *Invalid job id*"])
    assert [name for name in lifecycle.all_names() if name.startswith("pytest-")] == []
