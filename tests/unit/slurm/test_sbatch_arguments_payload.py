"""A job as slurmrestd takes it. That Slurm makes the same of it is shown in tests/integration/test_batch_jobs.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_soperator.slurm import sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob

[PATH] = sbatch_arguments.DEFAULT_ENVIRONMENT


def job_of(version: str = "v0.0.42", **fields: Any) -> dict[str, Any]:
    said = dict(BatchJob(**{"command": "true", "chdir": "/x", **fields}).to_payload(version)["job"])
    own = [pair for pair in said["environment"] if pair not in sbatch_arguments.DEFAULT_ENVIRONMENT]
    return said | {"environment": own}


def test_the_least_there_is() -> None:
    assert BatchJob(command="true", chdir="/root").to_payload("v0.0.41") == {
        "job": {
            "name": "sbatch",
            "current_working_directory": "/root",
            "environment": [*sbatch_arguments.DEFAULT_ENVIRONMENT, "SLURM_SUBMIT_DIR=/root"],
            "standard_input": "/dev/null",
            "script": "#!/bin/sh\ntrue\n",
        }
    }


def test_lines_of_the_script_are_read_and_the_jobs_own_win() -> None:
    script = "#!/bin/sh\n#SBATCH -N2 -p main --mem=1G -a 1-9%3\n#SBATCH --export=ALL,A=1,B=2\n"
    said = job_of(command=None, script=script, partition="hidden", env={"B": "3"})
    assert (said["nodes"], said["partition"], said["array"]) == ("2", "hidden", "1-9%3")
    assert said["memory_per_node"] == {"set": True, "number": 1024}
    assert {"A=1", "B=3"} <= set(said["environment"])


def test_a_jobs_array_displaces_the_scripts_with_its_limit() -> None:
    said = job_of(command=None, script="#!/bin/sh\n#SBATCH -a 1-9%3\n", array="1-2")
    assert said["array"] == "1-2"


def test_extra_options_that_it_knows_are_translated() -> None:
    assert job_of(extra_args=["-N", "2", "--qos=high"])["nodes"] == "2"


def test_what_cannot_be_said_is_named_all_at_once() -> None:
    job = BatchJob(command="true", hint="nomultithread", cores_per_socket=2, extra_args=["--bbf=/x"], clusters="a")
    with pytest.raises(InvalidJob) as caught:
        job.to_payload("v0.0.44")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        *("chdir", "extra_args", "clusters", "cores_per_socket", "hint"),
    ]
    with pytest.raises(InvalidJob, match="remote_script: slurmrestd needs the script's text"):
        BatchJob(remote_script="/x").to_payload("v0.0.44")
    assert job_of("v0.0.45", cores_per_socket=2)["cores_per_socket"] == 2


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown slurmrestd version v0\.0\.40"):
        job_of("v0.0.40")


def test_flags_and_resources_add_up() -> None:
    said = job_of(spread_job=True, kill_on_invalid_dep=True, gpus_per_node=1, gres="lustre:2,gres/x:1")
    assert said["flags"] == ["SPREAD_JOB", "KILL_INVALID_DEPENDENCY"]
    assert said["tres_per_node"] == "gres/gpu:1,gres/lustre:2,gres/x:1"


def test_pyxis_options_go_through_the_environment() -> None:
    said = job_of(
        container_image="nvcr.io#nvidia/pytorch:24.01", container_mounts=["/a:/b", "/c"], container_writable=True
    )
    own = "_SLURM_SPANK_OPTION_pyxis_container_"
    assert [pair for pair in said["environment"] if pair.startswith(own)] == [
        "_SLURM_SPANK_OPTION_pyxis_container_image=nvcr.io#nvidia/pytorch:24.01",
        "_SLURM_SPANK_OPTION_pyxis_container_mounts=/a:/b,/c",
        "_SLURM_SPANK_OPTION_pyxis_container_writable=",
    ]
    steps = [pair for pair in said["environment"] if pair.startswith("SLURM_SPANK_")]
    assert steps[0] == f"SLURM_SPANK_{own}image=nvcr.io#nvidia/pytorch:24.01"
    assert steps[2] == f"SLURM_SPANK_{own}writable=(null)"


@pytest.mark.parametrize(
    ("export", "starts"), [(None, PATH), ("ALL", PATH), ("NONE", "SLURM_GET_USER_ENV=1"), ("NIL", None)]
)
def test_export(export: str | None, starts: str | None) -> None:
    said = BatchJob(command="true", chdir="/x", export=export).to_payload("v0.0.42")
    assert said["job"]["environment"][:-1] == ([starts] if starts else [])


def test_components() -> None:
    job = BatchJob(command="true", name="a", chdir="/x", het=[BatchJob(nodes=2), BatchJob(name="b", gpus=1)])
    first, second, third = job.to_payload("v0.0.42")["jobs"]
    assert [each["name"] for each in (first, second, third)] == ["a", "a", "b"]
    assert "script" in first
    assert "script" not in second
    assert third["current_working_directory"] == "/x"


def test_it_is_json() -> None:
    text = "quotes \" ' lines\n$(x) \U0001f4a5"
    assert json.loads(json.dumps(job_of(env={"A": text})))["environment"][-1] == f"A={text}"


def test_a_node_that_fails_may_end_the_job() -> None:
    kept = {said: job_of(no_kill=said)["kill_on_node_fail"] for said in ("", "set", "off", "no")}
    assert kept == {"": False, "set": False, "off": True, "no": True}


def test_the_tasks_of_gpus_are_counted() -> None:
    of_job = job_of(gpus=2, gpu_type="h100", ntasks_per_gpu=3)
    of_nodes = job_of(nodes="2-4", gpus_per_node=4, ntasks_per_gpu=1)
    assert (of_job["tasks"], of_nodes["tasks"]) == (6, 8)
    assert job_of(ntasks=2, ntasks_per_gpu=1)["tasks"] == 2
