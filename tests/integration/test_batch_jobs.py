"""Real Slurms make the same job of a BatchJob whichever way it goes: words, or slurmrestd's JSON."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jwt
import pytest

from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.option_values import Signal
from airflow_provider_soperator.slurm.sbatch_arguments import Submission, submit_folder
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from sandbox.lifecycle import Sandbox
from tests.patience import PATIENCE

#: What each Slurm's slurmrestd serves, of what the provider speaks.
VERSIONS = {"24.11": ("v0.0.41", "v0.0.42"), "26.05": ("v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45")}

CANARY = "/root/canary"
HARM = f"\"'`touch {CANARY}`'\" $(touch {CANARY}); touch {CANARY} # \\ é \U0001f4a5 %"
LATER = datetime(2035, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

#: Each goes all ways. What Slurm refuses it must refuse in each, with the same words.
CASES: list[dict[str, Any]] = [
    {"name": HARM, "comment": HARM, "output": f"/root/{HARM.replace('/', '|')}", "mail_user": HARM},
    {"partition": ["main", "hidden"]},
    {"account": "root", "qos": "normal", "wckey": "a key"},
    {"nodes": 2, "ntasks": 4},
    {"nodes": "1-2", "ntasks_per_node": 2},
    {"ntasks": 5, "ntasks_per_node": 2},
    {"nodes": 2, "ntasks_per_node": 2, "cpus_per_task": 2},
    {"nodes": 2, "sockets_per_node": 1, "threads_per_core": 1},
    {"nodes": 2, "sockets_per_node": 1, "cores_per_socket": 2},
    {"nodes": 1, "threads_per_core": 1, "gpus": 1, "ntasks_per_gpu": 2},
    {"nodes": "1-2", "threads_per_core": 1},
    {"nodes": "1-4", "ntasks": 2},
    {"nodes": "2-3", "ntasks": 1},
    {"nodes": 4, "ntasks": 2},
    {"nodes": 4, "ntasks": 2, "ntasks_per_node": 2},
    {"nodes": "1,2", "ntasks": 2},
    {"ntasks": 2, "cpus_per_task": 2},
    {"ntasks": 2, "ntasks_per_socket": 1, "ntasks_per_core": 1},
    {"mincpus": 2, "tmp": "1G", "threads_per_core": 1, "sockets_per_node": 1},
    {"cores_per_socket": 1},
    {"core_spec": 1},
    {"thread_spec": 1},
    {"mem": "2G"},
    {"mem": 0},
    {"mem_per_cpu": 200},
    {"mem_per_gpu": "1.5G", "gpus": 2},
    {"gpus_per_node": 2, "nodes": 2, "cpus_per_gpu": 1},
    {"gpus_per_task": 1, "ntasks": 2, "cpus_per_task": 2},
    {"gpus": 1, "gpu_bind": "none", "gpu_freq": "medium", "gres_flags": "disable-binding"},
    {"gpus": 2, "gpu_type": "h100"},
    {"gpus": 2, "ntasks_per_gpu": 1},
    {"gpus_per_node": 2, "nodes": 2, "ntasks_per_gpu": 2},
    {"gpus_per_task": 1, "gpu_type": "h100", "ntasks": 1},
    {"gpus_per_task": 1, "gpus": 4, "cpus_per_task": 2},
    {"gres": "gpu:3", "gres_flags": ["enforce-binding"]},
    {"gres": "none"},
    {"tres_per_task": "cpu=2"},
    {"tres_per_task": ["cpu=1", "gres/gpu=1"], "ntasks": 1},
    {"time_limit": timedelta(hours=1, seconds=30), "time_min": 10},
    {"time_limit": "UNLIMITED"},
    {"time_limit": "1-12"},
    {"extra_args": ["--time=0", "--time-min=00:00:00"]},
    {"begin": LATER},
    {"begin": "2031-01-01T00:00:00"},
    {"deadline": LATER, "time_limit": 5},
    {"array": range(0, 10, 3), "array_limit": 2},
    {"array": "1,5-7"},
    {"dependency": "singleton", "kill_on_invalid_dep": True},
    {"kill_on_invalid_dep": False},
    {"constraint": "no-such"},
    {"constraint": "(a&b"},
    {"prefer": "no-such"},
    {"batch": "no-such"},
    {"reservation": "no-such"},
    {"licenses": "no-such:1"},
    {"account": "no-such"},
    {"qos": "no-such"},
    {"partition": "no-such"},
    {"nodelist": "worker-[0-1],worker-cpu-0"},
    {"nodelist": ["worker-0", "worker-1"], "nodes": 2},
    {"exclude": "worker-1,worker-[2-3]"},
    {"exclusive": True},
    {"exclusive": "user"},
    {"oversubscribe": True, "overcommit": True},
    {"spread_job": True, "use_min_nodes": True, "contiguous": True},
    {"switches": "2@10:00"},
    {"switches": 1, "segment": 1},
    {"requeue": True},
    {"requeue": False, "no_kill": ""},
    {"signal": "B:USR1@120"},
    {"signal": Signal("TERM", 30)},
    {"signal": Signal(10, 30, batch_only=True, reservation=True)},
    {"output": "/root/a b-%j.out", "error": "/root/e.err", "input": "/etc/passwd", "open_mode": "append"},
    {"open_mode": "truncate", "chdir": "/tmp"},
    {"priority": 77, "hold": None, "begin": LATER},
    {"nice": 5},
    {"nice": -5, "delay_boot": 3, "reboot": True, "wait_all_nodes": True},
    {"mail_type": "ALL", "mail_user": "someone@somewhere"},
    {"mail_type": ["END", "TIME_LIMIT", "TIME_LIMIT_80", "ARRAY_TASKS", "INVALID_DEPEND"]},
    {"distribution": "cyclic:block", "network": "x", "mcs_label": "x", "cpu_freq": "high"},
    {"profile": "task,energy"},
    {"profile": "all"},
    {"container": "/no/such", "bb": "x"},
    {"extra_args": ["--nodes=2", "--comment", HARM]},
]

#: A script, in place of the command that a job has beside its options.
NOTHING = b"#!/bin/sh\ntrue\n"

#: Differ from one submission to the next, or from one way to the other, whatever the job.
OWN = {
    *("job_id", "array_job_id", "association_id", "command", "submit_line", "submit_host", "allocating_node"),
    *("submit_time", "eligible_time", "accrue_time", "last_sched_evaluation", "start_time", "end_time", "step_id"),
    *("stdout_expanded", "stderr_expanded", "stdin_expanded", "cron", "het_job_id", "het_job_id_set"),
    *("standard_output", "standard_error", "state_description", "priority", "priority_by_partition"),
}
#: Flags that the scheduler sets as it goes.
PASSING = {"BACKFILL_ATTEMPTED", "SCHEDULING_ATTEMPTED", "DEPENDENT", "BACKFILL_TEST", "TESTING_BACKFILL"}


class Road:
    """To one sandbox: commands through its SSH server, and its slurmrestd."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.slurm = sandbox.settings.slurm
        access = json.loads(sandbox.paths.access.read_text())
        ssh, self.rest = access["ssh"], access["rest"]
        self.ssh = [
            "ssh",
            "-i",
            ssh["key_file"],
            "-o",
            f"UserKnownHostsFile={ssh['known_hosts']}",
            "-p",
            str(ssh["port"]),
        ]
        self.ssh += ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/ssh", "-o", "ControlPersist=60"]
        self.ssh += [f"{ssh['user']}@{ssh['host']}"]
        key = Path(self.rest["jwt_key_file"]).read_bytes()
        claims = {"sun": self.rest["user"], "iat": int(time.time()), "exp": int(time.time()) + 86400}
        self.token = jwt.encode(claims, key, algorithm="HS256")

    def close(self) -> None:
        subprocess.run([*self.ssh[:-1], "-O", "exit", self.ssh[-1]], capture_output=True)

    def try_run(self, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self.ssh, shlex.join(argv)], input=stdin, capture_output=True)

    def run(self, *argv: str, stdin: bytes = b"") -> str:
        said = self.try_run(*argv, stdin=stdin)
        assert said.returncode == 0, said.stderr.decode()
        return said.stdout.decode()

    def submit(self, submission: Submission) -> int:
        return int(self.run(*submission.argv, stdin=submission.stdin))

    def post(self, version: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.rest['url']}/slurm/{version}/job/submit",
            data=json.dumps(body).encode(),
            headers={
                "X-SLURM-USER-NAME": self.rest["user"],
                "X-SLURM-USER-TOKEN": self.token,
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request) as response:
                said: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as refused:
            said = json.load(refused)
        return said

    def all_ways(self, job: BatchJob) -> dict[str, int | str]:
        """The job's id, or Slurm's refusal, for each way there is."""
        found: dict[str, int | str] = {}
        by_words = self.try_run("sbatch", "--parsable", *job.argv(), stdin=NOTHING)
        found["words"] = by_words.stderr.decode().strip() if by_words.returncode else int(by_words.stdout)
        for version in VERSIONS[self.slurm]:
            if job.cores_per_socket is not None and version < "v0.0.45":
                continue
            said = self.post(version, job.to_payload(version))
            assert not [w for w in said["warnings"] if "Expected" in w["description"]], said["warnings"]
            found[version] = "; ".join(error["error"] for error in said["errors"]) or int(said["job_id"])
        return found

    def show(self, job: int) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = json.loads(self.run("scontrol", "show", "job", str(job), "--json"))["jobs"]
        return shown

    def finished(self, job: int) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while (shown := self.show(job)[0])["job_state"] not in (["COMPLETED"], ["FAILED"]):
            assert time.monotonic() < deadline, shown["job_state"]
            time.sleep(0.1)
        return shown


@pytest.fixture(scope="module")
def road(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    road = Road(sandbox, tmp_path_factory.mktemp("ssh"))
    yield road
    road.run("scancel", "--full", "--user=root")
    road.close()


def recorded(shown: dict[str, Any]) -> dict[str, Any]:
    kept = {field: value for field, value in shown.items() if field not in OWN}
    kept["flags"] = sorted(set(kept["flags"]) - PASSING)
    return kept


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: ",".join(fields))
def test_slurm_makes_the_same_job_of_each_way(road: Road, fields: dict[str, Any]) -> None:
    check_same(road, fields)


def test_slurm_makes_the_same_dependencies_of_each_way(road: Road) -> None:
    # Of jobs that wait: slurmctld drops a dependency on one that it does not know at its next look.
    held = BatchJob(command="true", chdir="/root", hold=True)
    first, second = (int(road.run("sbatch", "--parsable", *held.argv(), stdin=NOTHING)) for _ in range(2))
    check_same(road, {"dependency": [Dependency("afterany", first), Dependency("after", second, minutes=5)]})


def check_same(road: Road, fields: dict[str, Any]) -> None:
    job = BatchJob(**{"command": "true", "name": "same", "chdir": "/root", "hold": True, **fields})
    ways = road.all_ways(job)
    refused = {way: said for way, said in ways.items() if isinstance(said, str)}
    if refused:
        assert refused.keys() == ways.keys(), ways
        [words] = {said.removeprefix("sbatch: error: ").split(": ")[-1] for said in refused.values()}
        assert words
        return
    records = {way: recorded(road.show(int(number))[0]) for way, number in ways.items()}
    for way, record in records.items():
        assert record == records["words"], way
    for field in ("name", "comment"):
        if field in fields:
            assert records["words"][field] == fields[field]
    if "output" in fields:
        assert road.show(int(ways["words"]))[0]["standard_output"].startswith(fields["output"].split("%")[0])
    road.run("scancel", *map(str, ways.values()))


def test_components(road: Road) -> None:
    others = [BatchJob(nodes=2, gpus_per_node=1), BatchJob(ntasks=3, partition="hidden", comment="third #")]
    job = BatchJob(
        command="true", name="het", chdir="/root", hold=True, comment="first", time_limit=5, ntasks=1, het=others
    )
    ways = road.all_ways(job)
    shown = {way: [recorded(part) for part in road.show(int(number))] for way, number in ways.items()}
    for part in (part for parts in shown.values() for part in parts):
        del part["max_nodes"]  # sbatch leaves in a later component what it made of the first one's tasks
    assert [len(parts) for parts in shown.values()] == [3] * len(shown)
    for way, parts in shown.items():
        assert parts == shown["words"], way
    assert [part["name"] for part in shown["words"]] == ["het"] * 3
    assert [part["node_count"]["number"] for part in shown["words"]] == [1, 2, 1]
    assert [part["comment"] for part in shown["words"]] == ["first", "first", "third #"]
    road.run("scancel", *map(str, ways.values()))


# Scripts with lines of their own


LINES = [
    "--comment='a  b'",
    "--comment=a' 'b\" \"c # no",
    r"--comment=a\ b\#c\"d\\e",
    r"--comment='it\'s' --nice=3",
    "--comment=a#b",
    "--comment='#' -N2",
    "--comment=\"$(touch /root/canary)\" '' --nice=7",
    "--comment $HOME\t--nodes\t2",
    "-N2 -n 4 -c2 --comm=x",
    "--comment=é\U0001f4a5 -Hs",
    "--time 1:00 -t2-3 --requeue --no-requeue",
    "--export=ALL,A=1 --exclusive=user -k",
    "-d singleton --signal B:USR1@3 --array=3-5%2",
]


@pytest.mark.parametrize("line", LINES)
def test_lines_are_read_as_sbatch_reads_them(road: Road, line: str) -> None:
    script = f"#!/bin/sh\n# more\n#SBATCH -J lines -D /root --hold\n\n#SBATCH {line}\ntrue\n#SBATCH --comment=late\n"
    by_sbatch = int(road.run("sbatch", "--parsable", stdin=script.encode()))
    job = BatchJob(command="true", **directives.read(script)[0].fields)
    by_us = int(road.run("sbatch", "--parsable", *job.argv(), stdin=NOTHING))
    version = VERSIONS[road.slurm][-1]
    by_rest = road.post(version, BatchJob(script=script).to_payload(version))["job_id"]
    records = [recorded(road.show(number)[0]) for number in (by_sbatch, by_us, by_rest)]
    assert records[1] == records[0]
    assert records[2] == records[0]
    assert not directives.read(script)[0].extra_args
    road.run("scancel", *map(str, (by_sbatch, by_us, by_rest)))


def test_the_jobs_own_options_win_in_each_way(road: Road) -> None:
    script = "#!/bin/sh\n#SBATCH -J theirs -N2 --comment=theirs\n#SBATCH --mem=1G\ntrue\n"
    job = BatchJob(script=script, name="ours", comment="ours", chdir="/root", hold=True)
    version = VERSIONS[road.slurm][-1]
    numbers = [
        road.submit(job.submission()),
        road.post(version, job.to_payload(version))["job_id"],
    ]
    for number in numbers:
        shown = road.show(number)[0]
        assert (shown["name"], shown["comment"], shown["node_count"]["number"]) == ("ours", "ours", 2)
        assert shown["memory_per_node"]["number"] == 1024
    road.run("scancel", *map(str, numbers))


# What reaches the job


SHOW_ALL = (
    "#!/usr/bin/python3\nimport json, os, sys\n"
    "print(json.dumps([{os.fsdecode(k): v.hex() for k, v in os.environb.items()}, sys.argv[1:]]))\n"
)
VARIABLES = {
    "PLAIN": "x",
    "HARM": HARM,
    "LINES": "\none\n\ntwo\n",
    "SPACES": "  x  ",
    "EMPTY": "",
    "LISTED": "a=b,c=d,ALL",
    "BIG": HARM + "x" * 100_000,
    "UID": "seven",
    "IFS": "x",
    "RANDOM": "none",
    "SHELLOPTS": "posix",
    "BASH_ENV": "/nowhere",
    "LD_LIBRARY_PATH": "/nowhere",
    "PATH": "/nowhere:/usr/bin:/bin",
}
ARGS = ["a b", "", HARM, "two\nlines", "--nodes=9"]
HERE: dict[str, Any] = {"nodelist": "worker-cpu-0", "ntasks": 1, "mem": "50M", "chdir": "/root"}
REMOTE = '/root/a "b" $(touch canary)\'s.py'

BODIES: dict[str, BatchJob] = {
    "script": BatchJob(script=SHOW_ALL, **HERE),
    "script with arguments": BatchJob(script=SHOW_ALL, args=ARGS, **HERE),
    "on the cluster": BatchJob(remote_script=REMOTE, args=ARGS, **HERE),
    "words of a command": BatchJob(command=["/usr/bin/python3", "/root/show.py", *ARGS], **HERE),
    "none of the login's variables": BatchJob(script=SHOW_ALL, export="NONE", **HERE),
}


@pytest.fixture(scope="module")
def scripts(road: Road) -> None:
    for path in (REMOTE, "/root/show.py"):
        road.run("sh", "-c", 'cat > "$1" && chmod +x "$1"', "sh", path, stdin=SHOW_ALL.encode())


def for_body(body: str, env: dict[str, str]) -> dict[str, str]:
    """A command is run by a shell, and every shell sets IFS anew."""
    return {name: value for name, value in env.items() if name != "IFS" or body != "words of a command"}


def check_job(road: Road, number: int, job: BatchJob) -> None:
    shown = road.finished(number)
    path = shown["standard_output"].replace("%j", str(number))
    said = road.run("cat", path if path.startswith("/") else f"/root/{path}")
    variables, args = json.loads(said)
    assert {name: bytes.fromhex(variables.get(name, "")).decode() for name in job.env} == job.env
    if job.args or job.command:
        assert args == ARGS
    assert variables["SLURM_NTASKS"] == b"1".hex()
    assert road.try_run("test", "-e", CANARY).returncode == 1


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("env", [VARIABLES, {}], ids=["variables", "none"])
@pytest.mark.parametrize("body", BODIES)
def test_variables_and_arguments_arrive_as_they_are(road: Road, body: str, env: dict[str, str]) -> None:
    job = BODIES[body].replace(env=for_body(body, env), comment=HARM, name=HARM)
    check_job(road, road.submit(job.submission()), job)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("body", [name for name in BODIES if name != "on the cluster"])
def test_variables_and_arguments_arrive_through_slurmrestd(road: Road, body: str) -> None:
    job = BODIES[body].replace(env=for_body(body, VARIABLES), comment=HARM, name=HARM)
    posted = [road.post(version, job.to_payload(version)) for version in VERSIONS[road.slurm]]
    for said in posted:
        assert not said["errors"], said["errors"]
        check_job(road, said["job_id"], job)


#: What only a login, another submission or another spelling of the same has.
PASSED_ON = {"MAIL", "PWD", "SHELL", "SHLVL", "SLURM_PRIO_PROCESS", "SLURM_SUBMIT_HOST"}
OF_ONE_JOB = re.compile(r"SSH_.*|_|.*(JOB_?ID|JOB_SLUID|PID|TIME|_PACK_GROUP_\d|JOB_ID_HET_GROUP_\d)")


@pytest.mark.parametrize(
    "fields",
    [
        {"chdir": "/tmp", "dependency": "singleton", "name": "alone"},
        {"export": "NONE"},
        {"export": "NIL"},
        {"gpus_per_task": 1, "ntasks": 2, "cpus_per_task": 1, "nodelist": "worker-0"},
        {"ntasks": None, "nodes": 1, "sockets_per_node": 1, "threads_per_core": 1},
        {"gpus_per_node": 1, "mem": None, "mem_per_gpu": "50M", "gpu_bind": "closest", "nodelist": "worker-0"},
        {"ntasks": 1, "het": [BatchJob(ntasks=2, gpus=1, nodelist="worker-0")]},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_a_job_has_the_variables_that_sbatch_gives_it(road: Road, fields: dict[str, Any]) -> None:
    job = BatchJob(**{"script": SHOW_ALL, **HERE, "output": "/root/env-%j.out", **fields})
    version = VERSIONS[road.slurm][-1]
    body = job.to_payload(version, "root", "/root")
    words = job.submission()
    # As one who has changed to its folder.
    words = replace(words, argv=("env", "-C", submit_folder(job) or "/root", *words.argv))
    found = []
    # One after the other, so that both get the same GPUs.
    for way in ("words", version):
        number = road.submit(words) if way == "words" else int(road.post(way, body)["job_id"])
        road.finished(number)
        variables, _ = json.loads(road.run("cat", f"/root/env-{number}.out"))
        found.append({name: bytes.fromhex(value).decode() for name, value in variables.items()})
    differing = {name for said in found for name in said if found[0].get(name) != found[1].get(name)}
    assert not {name for name in differing - PASSED_ON if not OF_ONE_JOB.fullmatch(name)}


def test_nothing_of_the_environment_is_in_accounting_or_handed_to_steps(road: Road) -> None:
    job = BatchJob(script=SHOW_ALL, env={"TOKEN": "very-secret"}, **HERE)
    number = road.submit(job.submission())
    shown = road.finished(number)
    variables, _ = json.loads(road.run("cat", shown["standard_output"].replace("%j", str(number))))
    assert "SLURM_EXPORT_ENV" not in variables
    assert "very-secret" not in json.dumps(shown)


# Names


def test_a_long_name_with_a_key_is_kept_whole_everywhere(road: Road) -> None:
    key = SubmissionKey.derive("dag", "run", "task", 3, HARM)
    name = key.name("é\U0001f4a5\"' $(x)\\ `;|,\t" * 40)
    assert len(name.encode()) > 190
    job = BatchJob(command="true", name=name, output="/root/%x-%j.out", **HERE)
    number = road.submit(job.submission())
    shown = road.finished(number)
    assert shown["name"] == name
    assert shown["job_state"] == ["COMPLETED"]
    queued = json.loads(road.run("squeue", "--all", "--states=all", f"--name={name}", "--json"))["jobs"]
    assert [(each["job_id"], each["name"]) for each in queued] == [(number, name)]
    deadline = time.monotonic() + PATIENCE
    while not (kept := json.loads(road.run("sacct", "-X", f"--jobs={number}", "--json"))["jobs"]):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert key_of(kept[0]["name"]) == key
    assert kept[0]["name"] == name
    found = json.loads(road.run("sacct", "-X", f"--name={name}", "--starttime=now-1hour", "--json"))["jobs"]
    assert [each["job_id"] for each in found] == [number]
