"""The program of ``SubmitOnce`` in a real bash, on commands that stand for Slurm's."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_soperator.slurm.errors import (
    AccountingUnreachable,
    AuthenticationFailed,
    CommandNotFound,
    ControllerUnreachable,
    NotReached,
    SlurmError,
    SubmitIncomplete,
    SubmitRefused,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.requests import CommandOutput, submission
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from tests.submissions import new_jobs

# Each keeps its arguments, and fails with the words of a file of its name.
HEAD = """#!/bin/bash
name=${0##*/}
printf '%s\\n' "$*" >>"$SLURM_STATE/$name.calls"
if [ -e "$SLURM_STATE/$name.fails" ]; then cat "$SLURM_STATE/$name.fails" >&2; exit 1; fi
"""
COMMANDS = {
    # The queue has a line for each job: its id, state and name.
    "squeue": """
for word; do [[ $word != --format=* ]] || format=${word#*=}; done
while read -r id state name; do
    line=${format//%F/$id} line=${line//%T/$state} line=${line//%k/} line=${line//%j/$name}
    echo "$line"
done <"$SLURM_STATE/queue"
""",
    # Accounting has a line for each job: its id, its user's and its name. Root sees all, and is told of names alone.
    "sacct": """
user= names=
for word; do
    case $word in
        --user=*) user=${word#*=} ;;
        --name=*) names=,${word#*=}, ;;
        --delimiter=*) delimiter=${word#*=} ;;
    esac
done
while read -r id owner name; do
    [[ -z $user || $user == "$owner" ]] || continue
    [[ -z $names || $names == *",$name,"* ]] || continue
    echo "$id$delimiter$name"
done <"$SLURM_STATE/past"
""",
    # Refuses a partition, and gives out numbers.
    "sbatch": """
for word; do
    [[ $word != --job-name=* ]] || job=${word#*=}
    [[ $word != --partition=* ]] || { echo "sbatch: error: invalid partition specified: ${word#*=}" >&2; exit 1; }
done
exec 7>>"$SLURM_STATE/lock"
flock 7
id=$(($(wc -l <"$SLURM_STATE/sbatch.ids") + 1))
echo "$job" >>"$SLURM_STATE/sbatch.ids"
echo "$id PENDING $job" >>"$SLURM_STATE/queue"
echo "$id"
""",
}


@dataclass
class Slurm:
    """A machine with Slurm's commands."""

    folder: Path

    def put(self, name: str, body: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(HEAD + body)
        file.chmod(0o755)

    def fail(self, command: str, words: str) -> None:
        (self.state / f"{command}.fails").write_text(words)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def calls(self, command: str) -> str:
        file = self.state / f"{command}.calls"
        return file.read_text() if file.exists() else ""

    def submitted(self) -> list[str]:
        """The names of all jobs that were ever submitted."""
        return (self.state / "sbatch.ids").read_text().splitlines()

    def ask(self, *jobs: BatchJob) -> tuple[Submitted, ...]:
        request = SubmitOnce(jobs=jobs)
        command = request.command()
        variables = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SLURM_STATE": str(self.state),
        }
        ended = subprocess.run(command.argv, input=command.stdin, env=variables, capture_output=True, check=False)
        return request.read(CommandOutput(ended.returncode, ended.stdout, ended.stderr))

    def error(self, *jobs: BatchJob) -> SlurmError:
        with pytest.raises(SlurmError) as caught:
            self.ask(*jobs)
        return caught.value


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    found = Slurm(tmp_path)
    (tmp_path / "bin").mkdir()
    found.state.mkdir()
    for name in ("queue", "past", "sbatch.ids"):
        (found.state / name).touch()
    for name, body in COMMANDS.items():
        found.put(name, body)
    return found


def test_each_key_has_one_job(slurm: Slurm) -> None:
    one, two, three = new_jobs(3)
    first, second = slurm.ask(one, two)
    assert {first.id, second.id} == {JobId(1), JobId(2)}
    assert slurm.ask(three, two, one) == (
        Submitted(JobId(3)),
        Submitted(second.id, adopted=True),
        Submitted(first.id, adopted=True),
    )
    assert sorted(slurm.submitted()) == sorted(str(job.name) for job in (one, two, three))


def test_only_sbatch_rejects_a_job(slurm: Slurm) -> None:
    bad, good = new_jobs(2)
    refused, submitted = slurm.ask(bad.replace(partition="nowhere"), good)
    assert isinstance(refused.error, SubmitRefused)
    assert submitted.id == JobId(1)


NO_SPACE = "cannot write: No space left on device"


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("flock", "", "was not free within 120 s"),
        ("mktemp", NO_SPACE, NO_SPACE),
        ("squeue", "squeue: error: words that no rule knows", "words that no rule knows"),
        ("sacct", "sacct: error: words that no rule knows", "words that no rule knows"),
    ],
)
def test_what_keeps_a_submission_from_its_turn_may_pass(slurm: Slurm, command: str, words: str, said: str) -> None:
    slurm.put(command, COMMANDS.get(command, ""))
    slurm.fail(command, words)
    error = slurm.error(*new_jobs())
    assert isinstance(error, SubmitIncomplete)
    assert (error.retryable, error.unsettled) == (True, True)
    assert said in str(error)
    assert slurm.submitted() == []


@pytest.mark.parametrize(
    ("command", "words", "error"),
    [
        (
            "squeue",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            ControllerUnreachable,
        ),
        ("squeue", "slurm_load_jobs error: Protocol authentication error", AuthenticationFailed),
        ("squeue", "bash: line 52: squeue: command not found", CommandNotFound),
        ("sacct", "sacct: error: Problem talking to the database: Connection refused", AccountingUnreachable),
    ],
)
def test_what_is_known_keeps_its_error(slurm: Slurm, command: str, words: str, error: type[SlurmError]) -> None:
    slurm.fail(command, words)
    assert type(slurm.error(*new_jobs())) is error


def test_without_accounting_the_queue_decides(slurm: Slurm) -> None:
    slurm.fail("sacct", "Slurm accounting storage is disabled")
    jobs = new_jobs()
    assert [slurm.ask(*jobs)[0].adopted for _ in range(2)] == [False, True]


def test_the_time_limit_counts_from_the_lock_on(slurm: Slurm) -> None:
    slurm.put("flock", "")
    jobs = new_jobs()
    slurm.ask(*jobs)
    waits = int(re.findall(r"-w (\d+) 9", slurm.calls("flock"))[0])
    assert SubmitOnce(jobs=jobs).command().timeout - waits >= TIMEOUT


def test_what_a_slow_cluster_does_not_get_to_is_left_for_the_next_request(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if each job took longer than the time of all.
    monkeypatch.setattr(submission, "WORK_TIME", 0)
    jobs, goes = new_jobs(10), []
    while not goes or any(isinstance(one.error, NotReached) for one in goes[-1]):
        goes.append(slurm.ask(*jobs))
    # Each goes on where the one before has ended.
    assert [sum(one.id is not None for one in answers) for answers in goes] == [4, 8, 10]
    assert all(one.error is None or one.error.retryable for answers in goes for one in answers)
    assert sorted(slurm.submitted()) == sorted(str(job.name) for job in jobs)


def past(slurm: Slurm, number: int, user: int, job: BatchJob) -> None:
    with (slurm.state / "past").open("a") as lines:
        lines.write(f"{number} {user} {job.name}\n")


def test_a_job_of_another_user_with_the_same_name_is_not_adopted(slurm: Slurm) -> None:
    [job] = new_jobs()
    past(slurm, 41, os.geteuid() + 1, job)
    assert slurm.ask(job) == (Submitted(JobId(1)),)
    [job] = new_jobs()
    past(slurm, 42, os.geteuid(), job)
    assert slurm.ask(job) == (Submitted(JobId(42), adopted=True),)


def keyed(name: str) -> BatchJob:
    return BatchJob(command="true", name=SubmissionKey.derive("dag", "run", name, -1, "1").name(name))


@pytest.mark.parametrize("name", ["my job", "données", "a (b) $c; {d} `e` %f"])
def test_an_odd_name_does_not_make_accounting_read_everything(slurm: Slurm, name: str) -> None:
    jobs = (*new_jobs(), keyed(name))
    past(slurm, 42, os.geteuid(), jobs[1])
    assert [one.adopted for one in slurm.ask(*jobs)] == [False, True]
    assert str(jobs[1].name) in slurm.calls("sacct").partition("--name=")[2]


@pytest.mark.parametrize("name", ["训练", "a[1-3]", "back\\slash", " before"])
def test_a_name_that_sacct_would_alter_is_found_among_all(slurm: Slurm, name: str) -> None:
    jobs = (*new_jobs(), keyed(name))
    past(slurm, 42, os.geteuid(), jobs[1])
    assert [one.adopted for one in slurm.ask(*jobs)] == [False, True]
    assert "--name=" not in slurm.calls("sacct")
