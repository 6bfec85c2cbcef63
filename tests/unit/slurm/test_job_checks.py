"""Each mistake is found before anything is sent, and said in words that name the field."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.slurm.dependencies import AnyOf, Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob, ScriptFile, Signal

GOOD: list[dict[str, Any]] = [
    {},
    {"nodes": "2-4", "gpus_per_node": "h100:8", "exclusive": True, "mem": 0},
    {"array": range(10), "array_limit": 3},
    {"array": "1-10:2%3"},
    {"dependency": "afterok:1:2_3:4_*,after:5+10,singleton"},
    {"dependency": AnyOf(Dependency("afterok", 1), Dependency("afternotok", 2))},
    {"signal": "B:USR1@120"},
    {"signal": Signal(10, reservation=True)},
    {"time_limit": "UNLIMITED", "time_min": timedelta(hours=1)},
    {"constraint": "[rack1*2&rack2*4]"},
    {"comment": "quotes ' \" and $(things) `too` # 💥 \t"},
    {"env": {"A": 'lines\nand "quotes" $(x)', "B": "x" * 100_000, "LD_LIBRARY_PATH": "/x"}},
    {"requeue": False, "exclusive": False, "hold": False},
    {"extra_args": ["--bbf=/x", "--of-a-plugin", "its value"]},
    {"het": [BatchJob(nodes=2, name="second")]},
    {"gpus_per_task": 1, "ntasks": 8},
    {"export": "NONE", "env": {"A": "1"}},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"remote_script": "/x"}, "command and remote_script are given"),
    ({"command": None}, "nothing to run is given"),
    ({"command": " "}, "command: it is empty"),
    ({"command": "a\0b"}, "command: Slurm takes no script with NUL"),
    ({"command": ["a", "b\ud800"]}, "command: 'b\\ud800' cannot be written"),
    ({"command": None, "script": "echo no shebang"}, "script: its first line must begin with #!"),
    ({"command": None, "script": "#!/bin/sh\r\ntrue\r\n"}, "script: Slurm takes no script with DOS line ends"),
    ({"command": None, "script_file": ScriptFile("a", "true")}, "script_file: its first line"),
    ({"command": None, "remote_script": "-x"}, "remote_script: '-x' is no path"),
    ({"command": None, "remote_script": "/x\ny"}, "remote_script: '/x\\ny' has the control character"),
    ({"command": None, "remote_script": "/x", "args": ["a", ":"]}, "args: sbatch drops"),
    ({"command": None, "remote_script": "/x", "args": ["a\0"]}, "args: 'a\\x00' cannot be an argument"),
    ({"args": ["a"]}, "args: put them into command"),
    ({"name": "a\nb"}, "name: 'a\\nb' has the control character '\\n'"),
    ({"output": "a\0b"}, "output: 'a\\x00b' has the control character"),
    ({"comment": "\x1b[31m"}, "comment: '\\x1b[31m' has the control character"),
    ({"comment": "\ud800"}, "comment: '\\ud800' cannot be written as UTF-8"),
    ({"comment": "é" * 513}, "comment: 1026 bytes are more than the 1024"),
    ({"account": ""}, "account: it is empty"),
    ({"nodes": -1}, "nodes: -1 is negative"),
    ({"nodes": "4-2"}, "nodes: '4-2' runs backwards"),
    ({"nodes": "many"}, "nodes: 'many' is no number of nodes"),
    ({"ntasks": 0}, "ntasks: 0 is none at all"),
    ({"ntasks": -2}, "ntasks: -2 is negative"),
    ({"cpus_per_task": True}, "cpus_per_task: True is no whole number"),
    ({"gpus": "eight"}, "gpus: 'eight' is no number of GPUs"),
    ({"mem": "lots"}, "mem: 'lots' is no amount of memory"),
    ({"mem": -5}, "mem: -5 is negative"),
    ({"mem": "1G", "mem_per_cpu": "1G"}, "mem and mem_per_cpu: Slurm takes one of them"),
    ({"cpus_per_gpu": 1, "cpus_per_task": 1}, "cpus_per_task and cpus_per_gpu: Slurm takes one"),
    ({"exclusive": True, "oversubscribe": True}, "exclusive and oversubscribe: Slurm takes one"),
    ({"exclusive": "everyone"}, "exclusive: 'everyone' is none of"),
    ({"gpus_per_task": 1}, "gpus_per_task: it needs ntasks"),
    ({"gpus_per_node": 1, "gres": "gpu:2"}, "gpus_per_node and gres: both ask for GPUs"),
    ({"gpu_type": "h100"}, "gpu_type: there is no number of GPUs"),
    ({"cpus_per_task": 1, "tres_per_task": "cpu=2"}, "cpus_per_task and tres_per_task: both say how many cpu"),
    ({"time_limit": 0}, "time_limit: 0 would mean no limit"),
    ({"time_limit": timedelta(0)}, "time_limit: 0 would mean no limit"),
    ({"time_limit": "2h"}, "time_limit: '2h' is no duration"),
    ({"time_limit": timedelta(minutes=-1)}, "is negative"),
    ({"time_limit": 5, "time_min": "1:00:00"}, "time_min: it is longer than time_limit"),
    ({"array": "5-1"}, "array: '5-1' runs backwards"),
    ({"array": "1-10:0"}, "array: '1-10:0' has a step of 0"),
    ({"array": "a-b"}, "array: 'a-b' is no index"),
    ({"array": []}, "array: it has no elements"),
    ({"array": "1-5", "array_limit": 0}, "array: '0' is no number of elements"),
    ({"array": "1-5%2", "array_limit": 2}, "array: '2%2' is no number of elements"),
    ({"array": [-1, 2]}, "array: '-1' is no index"),
    ({"array": "0-9999999"}, "array: '0-9999999' has more elements"),
    ({"array": ",".join(str(index) for index in range(0, 4000, 3)) + ",5"}, "array: "),
    ({"array_limit": 2}, "array_limit: there is no array"),
    ({"dependency": "afterok"}, "dependency: afterok needs the id of a job"),
    ({"dependency": "afterok:me"}, "dependency: 'me' is no job id"),
    ({"dependency": "whenever:1"}, "dependency: 'whenever' is no kind of dependency"),
    ({"dependency": "afterok:1,afterok:2?afterok:3"}, "joins with both"),
    ({"dependency": Dependency("afterok", 1, minutes=5)}, "dependency: only after takes minutes"),
    ({"dependency": Dependency("singleton", 1)}, "dependency: singleton waits for jobs of the same name"),
    ({"signal": "NOSUCH"}, "signal: 'NOSUCH' is no signal"),
    ({"signal": "X:USR1"}, "signal: 'X:USR1' is no signal"),
    ({"signal": Signal("USR1", 70_000)}, "signal: 70000 seconds"),
    ({"priority": 5, "hold": True}, "hold and priority"),
    ({"priority": -1}, "priority: -1 is negative"),
    ({"open_mode": "rewrite"}, "open_mode: 'rewrite' is neither"),
    ({"env": {"A B": "x"}}, "env: 'A B' is no name of a variable"),
    ({"env": {"BASH_FUNC_x%%": "() { :; }"}}, "env: 'BASH_FUNC_x%%' is no name"),
    ({"env": {"SBATCH_ACCOUNT": "x"}}, "env: SBATCH_ACCOUNT would change the submission itself"),
    ({"env": {"_": "x"}}, "env: _ is set anew"),
    ({"env": {"A": "x\0"}}, "env: the value of A cannot be"),
    ({"env": {"A": 1}}, "env: the value of A is int, not text"),
    ({"env": {"A": "x" * 131_072}}, "env: A has 131074 bytes"),
    ({"env": {f"A{index}": "x" * 120_000 for index in range(10)}}, "bytes altogether are more than 1048576"),
    ({"env": {"A": "x"}, "export": "NIL"}, "export and env: NIL"),
    ({"extra_args": ["nodes=2"]}, "extra_args: 'nodes=2' is no option"),
    ({"extra_args": ["--nodes=2"], "nodes": 3}, "extra_args: '--nodes=2' is also said by nodes"),
    ({"extra_args": ["-N2"], "nodes": 3}, "extra_args: '-N2' is also said by nodes"),
    ({"extra_args": ["--wait"]}, "extra_args: --wait cannot be used"),
    ({"extra_args": ["-W"]}, "extra_args: --wait cannot be used"),
    ({"extra_args": [":"]}, "extra_args: ':' is no option"),
    ({"extra_args": ["--a=b\nc"]}, "extra_args: '--a=b\\nc' has the control character"),
    ({"het": [BatchJob(nodes=2)], "array": "1-2"}, "array and het: Slurm has no arrays"),
    ({"het": [BatchJob(nodes=2, command="x")]}, "het component 1: command: it belongs to the whole job"),
    ({"het": [BatchJob(nodes=-2)]}, "het component 1: nodes: -2 is negative"),
]

SCRIPTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "#SBATCH --mem=4G",
        {"mem_per_cpu": "1G"},
        "mem_per_cpu: Slurm does not take it with the mem of the script's line 2",
    ),
    ("#SBATCH -W", {}, "script: line 2: --wait cannot be used"),
    ("#SBATCH --comment='x", {}, "script: line 2: ' without its other half"),
    ("#SBATCH hetjob\n#SBATCH -N2", {"array": "1-2"}, "array and het"),
    ("#SBATCH hetjob\n#SBATCH -N2", {"het": [BatchJob(nodes=1)]}, "het: the script has #SBATCH hetjob lines as well"),
]


@pytest.mark.parametrize("fields", GOOD, ids=lambda fields: ",".join(fields) or "nothing")
def test_good_jobs(fields: dict[str, Any]) -> None:
    assert BatchJob(command="true", **fields).problems() == []


@pytest.mark.parametrize(("fields", "problem"), BAD, ids=[problem[:40] for _, problem in BAD])
def test_mistakes(fields: dict[str, Any], problem: str) -> None:
    found = BatchJob(**{"command": "true", **fields}).problems()
    assert any(problem in said for said in found), found


@pytest.mark.parametrize(("lines", "fields", "problem"), SCRIPTS)
def test_mistakes_with_a_script(lines: str, fields: dict[str, Any], problem: str) -> None:
    assert problem in "; ".join(BatchJob(script=f"#!/bin/sh\n{lines}\ntrue\n", **fields).problems())


def test_a_field_overrides_its_own_line() -> None:
    assert not BatchJob(script="#!/bin/sh\n#SBATCH --mem=4G\ntrue\n", mem="8G").problems()


def test_all_mistakes_are_said_at_once_and_nothing_is_rendered() -> None:
    job = BatchJob(command="true", nodes=-1, mem="x", time_limit=0)
    for render in (job.argv, job.to_script, job.submission, lambda: job.to_payload("v0.0.42")):
        with pytest.raises(InvalidJob) as caught:
            render()
        assert len(caught.value.problems) == 3
