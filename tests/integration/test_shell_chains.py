"""A chain of jobs, written as a shell script, is submitted by a real bash and sbatch, and is what the jobs are."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_soperator.pipelines.chains.reading import read
from airflow_provider_soperator.pipelines.chains.writing import as_shell
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.integration.cluster import Cluster

ODD = "\"'`touch /root/harm`'\" $(touch /root/harm); # \\ é ) \n\nEOF\n"
COMMENT = 'it\'s "$HOME" `x` \\ é'
SHOW = (
    "#!/usr/bin/python3\nimport json, os, sys\n"
    "print(json.dumps([dict(os.environ), sys.argv[1:]]))\n"
    "r'''\nEOF\nEOF_\n$HOME `x` \\ it\"s )\n'''"
)
REMOTE = "/root/it's.sh"
HERE: dict[str, Any] = {"nodelist": "worker-cpu-0", "mem": "50M", "chdir": "/root"}


def key(task: str) -> SubmissionKey:
    return SubmissionKey.derive("shell", "chain", task, -1, 1)


def submit(cluster: Cluster, text: str) -> dict[str, str]:
    """Run the script, and return the ids that it prints."""
    return dict(line.split(": ") for line in cluster.run("bash", "-c", text).splitlines())


def waits_for(cluster: Cluster, job: str) -> str:
    """As squeue has it, but for what it says about each."""
    said = cluster.run("squeue", "--noheader", "--array", "--format=%E", f"--jobs={job}").splitlines()[0]
    return said.strip().replace("(unfulfilled)", "")


def test_jobs_run_as_they_are(cluster: Cluster) -> None:
    cluster.run("sh", "-c", 'printf %s "$1" > "$2"', "sh", '#!/bin/sh\nprintf "%s|" "$A" "$@"', REMOTE)
    env = {"A": ODD, "UID": "seven", "PATH": "/nowhere:/usr/bin:/bin"}
    jobs = {
        "show": BatchJob(
            name=key("show").name("show"),
            comment=COMMENT,
            script=SHOW,
            env=env,
            args=["a b", "", ODD],
            hold=True,
            **HERE,
        ),
        "remote": BatchJob(
            name=key("remote").name("remote"),
            remote_script=REMOTE,
            args=["$HOME", ODD],
            env={"A": "x"},
            dependency=Dependency("afterok", key("show")),
            **HERE,
        ),
        "sweep-1": BatchJob(
            name=key("sweep").name("sweep"),
            command=["printf", "%s", ODD],
            array=[1, 3],
            dependency=[Dependency("afterany", key("show"), key("remote")), Dependency("after", key("show"))],
            **HERE,
        ),
        "pair": BatchJob(command="echo \"$A\" 'b' \\$", env={"A": "x"}, het=[BatchJob(ntasks=2)], hold=True, **HERE),
    }
    text = as_shell(jobs)
    found = submit(cluster, text)
    assert list(found) == ["show", "remote", "sweep_1", "pair"]
    pair = json.loads(cluster.run("scontrol", "show", "job", found["pair"], "--json"))["jobs"]
    assert [component["tasks"]["number"] for component in pair] == [1, 2]
    cluster.run("scancel", found["pair"])
    shown = json.loads(cluster.run("scontrol", "show", "job", found["show"], "--json"))["jobs"]
    assert (shown[0]["name"], shown[0]["comment"]) == ("show", COMMENT)
    assert waits_for(cluster, found["remote"]) == f"afterok:{found['show']}"
    expected = f"afterany:{found['show']},afterany:{found['remote']},after:{found['show']}"
    assert waits_for(cluster, found["sweep_1"]) == expected
    cluster.run("scontrol", "release", found["show"])
    cluster.wait("the chain has ended", lambda: not cluster.run("squeue", "--noheader", "--format=%i").strip())
    said, args = json.loads(cluster.run("cat", f"/root/slurm-{found['show']}.out"))
    assert {name: said[name] for name in env} == env
    assert args == ["a b", "", ODD]
    assert cluster.run("cat", f"/root/slurm-{found['remote']}.out") == f"x|$HOME|{ODD}|"
    for index in (1, 3):
        assert cluster.run("cat", f"/root/slurm-{found['sweep_1']}_{index}.out") == ODD
    assert cluster.try_run("test", "-e", "/root/harm").returncode == 1


def test_a_script_that_has_been_read_is_written_again(cluster: Cluster) -> None:
    text = "A=$(sbatch --parsable -H --wrap 'true')\nsbatch -J b -d afterok:$A --wrap true\n"
    first, second = read(text)
    after = key("a")
    assert second.fields == {"name": "b", "dependency": f"afterok:{first.name}"}
    again = as_shell(
        {
            first.name: BatchJob(command=first.command, name=after.name("wrap"), **first.fields),
            second.name: BatchJob(command=second.command, name="b", dependency=Dependency("afterok", after)),
        }
    )
    found = submit(cluster, again)
    assert waits_for(cluster, found["b"]) == f"afterok:{found['a']}"
    cluster.run("scancel", *found.values())
