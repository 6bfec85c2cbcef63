"""Each mistake is found before anything is sent, and said in words that name the field."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.option_values import Signal

GOOD: list[dict[str, Any]] = [
    {},
    {"nodes": "2-4", "gpus_per_node": "h100:8", "exclusive": True, "mem": 0},
    {"array": range(10), "array_limit": 3},
    {"array": "1-10:2%3"},
    {"dependency": "afterok:1:2_3:4_*,after:5+10,singleton"},
    {"dependency": "afterok:1?afternotok:2"},
    {"gpus_per_node": "1g.10gb:2,h100:1", "gpus": 1, "gpu_type": "4090"},
    {"signal": "B:USR1@120"},
    {"signal": "rb:usr1@60"},
    {"signal": Signal(10, reservation=True)},
    {"signal": 10},
    {"time_limit": "UNLIMITED", "time_min": timedelta(hours=1)},
    {"constraint": "[rack1*2&rack2*4]"},
    {"comment": "quotes ' \" and $(things) `too` # 💥 \t"},
    {"env": {"A": 'lines\nand "quotes" $(x)', "B": "x" * 100_000, "LD_LIBRARY_PATH": "/x"}},
    {"requeue": False, "exclusive": False, "hold": False},
    {"name": 2026, "partition": 2026, "cpu_freq": 1.5, "chdir": Path("/x"), "mail_user": ["me", "you"]},
    {"extra_args": ["--bbf=/x", "--of-a-plugin", "its value"]},
    {"het": [BatchJob(nodes=2, name="second")]},
    {"gpus_per_task": 1, "ntasks": 8},
    {"gpus_per_task": 1, "nodes": 2},
    {"gpus_per_task": 1, "nodes": 2, "ntasks_per_node": 8},
    {"gpus_per_task": 1, "command": None, "script": "#!/bin/sh\n#SBATCH --ntasks=16\n"},
    {"gpus_per_task": 1, "gpus_per_socket": 1, "extra_args": ["--ntasks=16", "--sockets-per-node=2"]},
    {"gpus_per_socket": 1, "command": None, "script": "#!/bin/sh\n#SBATCH --sockets-per-node=2\n"},
    # Slurm reads its lines.
    {"gpus_per_task": 1, "gpus_per_socket": 1, "command": None, "remote_script": "/root/fit.sh"},
    {"export": "NONE", "env": {"A": "1"}},
]

BAD: list[tuple[dict[str, Any], str]] = [
    ({"remote_script": "/x"}, "command and remote_script are set"),
    ({"command": None}, "nothing to run: set exactly one"),
    ({"command": " "}, "command: must not be empty"),
    ({"command": "a\0b"}, "command: Slurm rejects scripts with NUL"),
    ({"command": ["a", "b\ud800"]}, "command: 'b\\ud800' cannot be encoded"),
    ({"command": None, "script": "echo no shebang"}, "script: its first line must begin with #!"),
    ({"command": None, "script": "\ufeff#!/bin/sh\n"}, "such as #!/bin/bash; before it is a byte order mark (U+FEFF)"),
    ({"command": None, "script": "#!/bin/sh\r\ntrue\r\n"}, "script: Slurm rejects scripts with DOS line ends"),
    ({"command": None, "remote_script": "-x"}, "remote_script: '-x' must be a path"),
    ({"command": None, "remote_script": "/x\ny"}, "remote_script: '/x\\ny' has the control character"),
    ({"command": None, "remote_script": "/x", "args": ["a", ":"]}, "args: sbatch drops"),
    ({"command": None, "remote_script": "/x", "args": ["a\0"]}, "args: 'a\\x00' has a NUL character"),
    ({"command": None, "remote_script": "/x", "args": "a b"}, "args: must be a list of words, got 'a b'"),
    ({"extra_args": "--bbf=/x"}, "extra_args: must be a list of words, got '--bbf=/x'"),
    ({"args": ["a"]}, "args: put them into command"),
    ({"name": "a\nb"}, "name: 'a\\nb' has the control character '\\n'"),
    ({"output": "a\0b"}, "output: 'a\\x00b' has the control character"),
    ({"comment": "\x1b[31m"}, "comment: '\\x1b[31m' has the control character"),
    ({"comment": "\ud800"}, "comment: '\\ud800' cannot be encoded as UTF-8"),
    ({"comment": "é" * 513}, "comment: 1026 bytes exceed Slurm's limit of 1024"),
    ({"account": ""}, "account: must not be empty"),
    ({"chdir": "~/train"}, "chdir: '~/train' is for a shell to understand"),
    ({"output": "$SCRATCH/%j.out"}, "output: '$SCRATCH/%j.out' is for a shell to understand"),
    ({"chdir": "/scratch/$USER/run"}, "chdir: '/scratch/$USER/run' is for a shell to understand"),
    ({"error": "logs/${RUN}.err"}, "error: 'logs/${RUN}.err' is for a shell to understand"),
    ({"command": None, "remote_script": "~/x"}, "remote_script: '~/x' is for a shell to understand"),
    ({"nodes": -1}, "nodes: must be >= 0, got -1"),
    ({"nodes": "4-2"}, "nodes: '4-2' runs backwards"),
    ({"nodes": "many"}, "nodes: 'many' is not a number of nodes"),
    ({"ntasks": 0}, "ntasks: must be at least 1, got 0"),
    ({"ntasks": -2}, "ntasks: must be >= 0, got -2"),
    ({"cpus_per_task": True}, "cpus_per_task: True is not a whole number"),
    ({"gpus": "eight"}, "gpus: 'eight' is not a number of GPUs"),
    ({"mem": "lots"}, "mem: 'lots' is not an amount of memory"),
    ({"mem": -5}, "mem: must be >= 0, got -5"),
    ({"mem": "1G", "mem_per_cpu": "1G"}, "mem and mem_per_cpu: Slurm takes only one of them"),
    ({"cpus_per_gpu": 1, "cpus_per_task": 1}, "cpus_per_task and cpus_per_gpu: Slurm takes only one"),
    ({"exclusive": True, "oversubscribe": True}, "exclusive and oversubscribe: Slurm takes only one"),
    ({"exclusive": "everyone"}, "exclusive: must be True, user, mcs or topo, got 'everyone'"),
    ({"gpus_per_task": 1}, "gpus_per_task: needs ntasks"),
    ({"gpus_per_socket": 1}, "gpus_per_socket: needs sockets_per_node"),
    ({"gpus_per_node": 1, "gres": "gpu:2"}, "gpus_per_node and gres: both ask for GPUs"),
    ({"gpu_type": "h100"}, "gpu_type: needs a number of GPUs"),
    ({"hold": "yes"}, "hold: must be True or False, got 'yes'"),
    ({"wait_all_nodes": "1"}, "wait_all_nodes: must be True or False, got '1'"),
    ({"cpus_per_task": 1, "tres_per_task": "cpu=2"}, "cpus_per_task and tres_per_task: both set the number of cpu"),
    ({"time_limit": 0}, "time_limit: 0 would mean no limit"),
    ({"time_limit": timedelta(0)}, "time_limit: 0 would mean no limit"),
    ({"time_limit": "2h"}, "time_limit: '2h' is not a duration"),
    ({"time_limit": timedelta(minutes=-1)}, "must be >= 0"),
    ({"time_limit": 5, "time_min": "1:00:00"}, "time_min: must not exceed time_limit"),
    ({"array": "5-1"}, "array: '5-1' runs backwards"),
    ({"array": "1-10:0"}, "array: '1-10:0' has a step of 0"),
    ({"array": "a-b"}, "array: 'a-b' is not an index"),
    ({"array": []}, "array: must have elements"),
    ({"array": 5}, "array: 5 is neither a text such as '0-9' nor a list of indices"),
    ({"mem": 1.5}, "mem: takes no float, got 1.5"),
    ({"time_limit": 1.5}, "time_limit: takes no float, got 1.5"),
    ({"gres": {"gpu": 8}}, "gres: takes a list, got {'gpu': 8}: write 'gpu:8'"),
    ({"container_mounts": {"/data": "/mnt", "/a": "/b"}}, "write '/data:/mnt,/a:/b'"),
    ({"tres_per_task": {"cpu": 2}}, "write 'cpu=2'"),
    ({"partition": ["main", None]}, "partition: takes a text, got None"),
    ({"constraint": ["h100", "ib"]}, "constraint: takes a text, got ['h100', 'ib']"),
    ({"output": {"a": "b"}}, "output: takes a text, got {'a': 'b'}"),
    ({"account": True}, "account: takes a text, got True"),
    ({"mem": True}, "mem: takes no bool, got True"),
    ({"tmp": True}, "tmp: takes no bool, got True"),
    ({"time_limit": True, "time_min": 1}, "time_limit: takes no bool, got True"),
    ({"time_limit": 1, "time_min": True}, "time_min: takes no bool, got True"),
    ({"dependency": 123}, "dependency: takes no int, got 123"),
    ({"array": "1-5", "array_limit": 0}, "array: '0' must be the number of elements"),
    ({"array": "1-5%2", "array_limit": 2}, "array: '2%2' must be the number of elements"),
    ({"array": [-1, 2]}, "array: '-1' is not an index"),
    ({"array": "0-9999999"}, "array: '0-9999999' has more elements"),
    ({"array": ",".join(str(index) for index in range(0, 4000, 3)) + ",5"}, "array: "),
    ({"array_limit": 2}, "array_limit: needs array"),
    ({"dependency": "afterok"}, "dependency: afterok needs the id of a job"),
    ({"dependency": "afterok:me"}, "dependency: 'me' is neither a job id"),
    ({"dependency": "whenever:1"}, "dependency: 'whenever' is not a type of dependency"),
    ({"dependency": "afterok:1,afterok:2?afterok:3"}, "has both ',' (all) and '?' (any)"),
    ({"dependency": Dependency("afterok", 1, minutes=5)}, "dependency: only after takes minutes"),
    ({"dependency": Dependency("singleton", 1)}, "dependency: singleton waits for jobs of the same name"),
    ({"signal": True}, "signal: takes a text, got True"),
    ({"signal": "NOSUCH"}, "signal: 'NOSUCH' is not a signal"),
    ({"signal": "X:USR1"}, "signal: 'X:USR1' is not a signal"),
    ({"signal": Signal("USR1", 70_000)}, "signal: seconds must be between 0 and 65535, got 70000"),
    ({"priority": 5, "hold": True}, "hold and priority"),
    ({"priority": -1}, "priority: must be >= 0, got -1"),
    ({"open_mode": "rewrite"}, "open_mode: must be append or truncate, got 'rewrite'"),
    ({"env": {"A B": "x"}}, "env: 'A B' is not a variable name"),
    ({"env": {"BASH_FUNC_x%%": "() { :; }"}}, "env: 'BASH_FUNC_x%%' is not a variable name"),
    ({"env": {"SBATCH_ACCOUNT": "x"}}, "env: SBATCH_ACCOUNT would change the submission itself"),
    (
        {"env": {"SLURM_HINT": "nomultithread"}},
        "env: SLURM_HINT would change the submission itself, not the job; use hint",
    ),
    ({"env": {"SLURM_HOSTFILE": "hosts"}}, "env: SLURM_HOSTFILE would change the submission itself"),
    ({"env": {"SLURM_JWT": "a.b.c"}}, "env: SLURM_JWT would change the submission itself"),
    ({"env": {"_": "x"}}, "env: _ is overwritten"),
    ({"env": {"A": "x\0"}}, "env: the value of A has a NUL character"),
    ({"env": {"A": 1}}, "env: the value of A must be a string, got int"),
    ({"env": {"A": "x" * 131_072}}, "env: A has 131074 bytes"),
    ({"env": {f"A{index}": "x" * 120_000 for index in range(10)}}, "bytes in total exceed the limit of 1048576"),
    ({"env": {"A": "x"}, "export": "NIL"}, "export and env: NIL"),
    ({"extra_args": ["nodes=2"]}, "extra_args: 'nodes=2' is not an option"),
    ({"extra_args": ["--nodes=2"], "nodes": 3}, "extra_args: '--nodes=2' is also set by nodes"),
    ({"extra_args": ["-N2"], "nodes": 3}, "extra_args: '-N2' is also set by nodes"),
    ({"extra_args": ["--wait"]}, "extra_args: --wait cannot be used"),
    ({"extra_args": ["-W"]}, "extra_args: --wait cannot be used"),
    ({"extra_args": ["-HW"]}, "extra_args: --wait cannot be used"),
    ({"extra_args": [":"]}, "extra_args: ':' is not an option"),
    ({"extra_args": ["--a=b\nc"]}, "extra_args: '--a=b\\nc' has the control character"),
    ({"het": [BatchJob(nodes=2)], "array": "1-2"}, "array and het: Slurm has no arrays"),
    ({"het": [BatchJob(nodes=2, command="x")]}, "het component 1: command: belongs to the whole job"),
    ({"het": [BatchJob(nodes=-2)]}, "het component 1: nodes: must be >= 0, got -2"),
]

SCRIPTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "#SBATCH --mem=4G",
        {"mem_per_cpu": "1G"},
        "mem_per_cpu: cannot be combined with mem on line 2 of the script",
    ),
    ("#SBATCH -W", {}, "script: line 2: --wait cannot be used"),
    ("#SBATCH --comment='x", {}, "script: line 2: ' is not closed"),
    ("#SBATCH hetjob\n#SBATCH -N2", {"array": "1-2"}, "array and het"),
    ("#SBATCH hetjob\n#SBATCH -N2", {"het": [BatchJob(nodes=1)]}, "het: the script has #SBATCH hetjob lines as well"),
]


@pytest.mark.parametrize("fields", GOOD, ids=lambda fields: ",".join(fields) or "nothing")
def test_good_jobs(fields: dict[str, Any]) -> None:
    assert BatchJob(**{"command": "true", **fields}).problems() == []


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
    for render in (job.argv, job.submission, lambda: job.to_payload("v0.0.42")):
        with pytest.raises(InvalidJob) as caught:
            render()
        assert len(caught.value.problems) == 3
