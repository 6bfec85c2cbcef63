"""A job as slurmrestd takes it. That Slurm makes the same of it is shown in tests/integration/test_batch_jobs.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_soperator.slurm import sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob

PATH = f"PATH={sbatch_arguments.DEFAULT_PATH}"
#: What each job has.
ALWAYS = [f"{name}={value}" for name, value in sbatch_arguments.LAUNCHERS.items()]


def job_of(version: str = "v0.0.42", **fields: Any) -> dict[str, Any]:
    said = dict(BatchJob(**{"command": "true", "chdir": "/x", **fields}).to_payload(version)["job"])
    own = [pair for pair in said["environment"] if pair not in (PATH, *ALWAYS)]
    return said | {"environment": own}


def test_the_least_there_is() -> None:
    assert BatchJob(command="true", chdir="/root").to_payload("v0.0.41") == {
        "job": {
            "name": "sbatch",
            "current_working_directory": "/root",
            "environment": ["SLURM_SUBMIT_DIR=/root", *ALWAYS, PATH],
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


@pytest.mark.parametrize("limit", ["0", "00:00:00", "UNLIMITED"])
def test_a_time_of_nothing_in_a_line_is_no_limit(limit: str) -> None:
    said = job_of(command=None, script=f"#!/bin/sh\n#SBATCH -t {limit} --time-min={limit}\n")
    assert said["time_limit"] == said["time_minimum"] == {"set": True, "infinite": True, "number": 0}
    assert job_of(time_limit="0:01")["time_limit"] == {"set": True, "number": 1}


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


@pytest.mark.parametrize("line", ["#PBS -l nodes=4:ppn=8", "#BSUB -n 4"])
def test_lines_of_other_schedulers_which_sbatch_translates_are_refused(line: str) -> None:
    script = f"#!/bin/sh\n#SBATCH -N2\nhostname\n{line}\n"
    with pytest.raises(InvalidJob, match=f"^script: '{line}': slurmrestd does not translate it: write it as #SBATCH"):
        job_of(command=None, script=script)
    # What sbatch leaves alone.
    assert job_of(command=None, script=script, extra_args=["--ignore-pbs"])["nodes"] == "2"
    assert job_of(command=None, script=f"#!/bin/sh\n#SBATCH --ignore-pbs\n{line}\n")["name"] == "sbatch"
    assert job_of(command=None, script="#!/bin/sh\n" + "true\n" * 101 + line)["name"] == "sbatch"
    assert job_of(command=None, script=f"#!/bin/sh\n {line}\n#{line}\n#PBS\n#PBS # none\n")["name"] == "sbatch"


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
    ("export", "has"),
    [
        (None, [PATH]),
        ("ALL", [PATH]),
        ("all,A=1", [PATH, "A=1"]),
        ("NONE", ["SLURM_EXPORT_ENV=NONE", "SLURM_GET_USER_ENV=1"]),
        ("NIL", ["SLURM_EXPORT_ENV=NIL"]),
        ("HOME,'A=x,y'", ["SLURM_EXPORT_ENV=HOME,A", "SLURM_GET_USER_ENV=1", "A=x,y"]),
        (["A=1", "B=2"], ["SLURM_EXPORT_ENV=A,B", "SLURM_GET_USER_ENV=1", "A=1", "B=2"]),
    ],
)
def test_export(export: str | list[str] | None, has: list[str]) -> None:
    said = BatchJob(command="true", chdir="/x", export=export).to_payload("v0.0.42")
    assert said["job"]["environment"] == ["SLURM_SUBMIT_DIR=/x", *ALWAYS, *has]


def test_a_job_has_the_users_home() -> None:
    said = BatchJob(command="true", chdir="/x", env={"HOME": "/y"}).to_payload("v0.0.42", "ann", "/home/ann")["job"]
    own = ["SLURM_SUBMIT_DIR=/x", *ALWAYS, PATH, "HOME=/y", "USER=ann", "LOGNAME=ann"]
    assert (said["current_working_directory"], said["environment"]) == ("/x", own)
    # Only one who has changed to a folder has submitted from there.
    for script, chdir in (("", None), ("", "x"), ("#SBATCH --chdir=/x\n", None)):
        job = BatchJob(script=f"#!/bin/sh\n{script}", chdir=chdir)
        assert job.to_payload("v0.0.42", "ann", "/home/ann")["job"]["environment"][0] == "SLURM_SUBMIT_DIR=/home/ann"


def test_implied_options_have_their_variables() -> None:
    said = job_of(gpus_per_task=2, ntasks=2, cpus_per_task=3, mem_per_gpu="1G", dependency="afterok:7")["environment"]
    of_tasks = {"SLURM_CPUS_PER_TASK=3", "SLURM_TRES_PER_TASK=cpu=3,gres/gpu=2", "SLURM_TRES_BIND=gres/gpu:per_task:2"}
    assert of_tasks | {"SLURM_MEM_PER_GPU=1024", "SLURM_JOB_DEPENDENCY=afterok:7"} <= set(said)


@pytest.mark.parametrize(
    ("fields", "tasks", "nodes"),
    [
        ({"ntasks": 5, "ntasks_per_node": 2}, 5, 3),
        ({"ntasks": 5, "ntasks_per_node": 2, "nodelist": "worker-0"}, 5, None),
        ({"nodes": 2, "ntasks_per_node": 8, "cpus_per_task": 4}, 16, "2"),
        ({"nodes": 2, "ntasks_per_node": 8}, None, "2"),
        ({"gpus": "h100:4", "gpus_per_task": "h100:2"}, 2, None),
        ({"nodes": 2, "sockets_per_node": 2, "cores_per_socket": 24, "threads_per_core": 1}, 96, "2"),
        ({"nodes": 2, "sockets_per_node": 2, "ntasks_per_node": 4}, None, "2"),
        ({"nodes": "2-4", "threads_per_core": 1}, None, "2-4"),
        ({"nodes": 1, "threads_per_core": 1, "gpus": 1, "ntasks_per_gpu": 2}, 2, "1"),
        ({"nodes": "1-4", "ntasks": 2}, 2, "1-2"),
        ({"nodes": "3-4", "ntasks": 2}, 2, "2"),
        ({"nodes": "1-4", "ntasks": 8}, 8, "1-4"),
        ({"nodes": 4, "ntasks": 2}, 2, "2"),
    ],
)
def test_tasks_and_nodes_are_counted(fields: dict[str, Any], tasks: int | None, nodes: int | str | None) -> None:
    said = job_of("v0.0.45", **fields)
    assert (said.get("tasks"), said.get("minimum_nodes", said.get("nodes"))) == (tasks, nodes)


def test_components() -> None:
    job = BatchJob(command="true", name="a", chdir="/x", het=[BatchJob(nodes=2), BatchJob(name="b", gpus=1)])
    first, second, third = job.to_payload("v0.0.42")["jobs"]
    assert [each["name"] for each in (first, second, third)] == ["a", "a", "b"]
    assert "script" in first
    assert "script" not in second
    assert third["current_working_directory"] == "/x"


def test_options_of_components_are_told_apart() -> None:
    job = BatchJob(command="true", chdir="/x", ntasks=1, env={"A": "1"}, het=[BatchJob(ntasks=2, gpus="h100:2")])
    first, second = job.to_payload("v0.0.42")["jobs"]
    of_parts = [f"SLURM_{name}_HET_GROUP_{part}={part + 1}" for part in (0, 1) for name in ("NTASKS", "NPROCS")]
    own = [pair for pair in first["environment"] if pair not in (PATH, *ALWAYS)]
    assert own == ["SLURM_SUBMIT_DIR=/x", *of_parts, "SLURM_GPUS_HET_GROUP_1=h100:2", "A=1"]
    # It may not be empty.
    assert second["environment"] == [PATH]


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
