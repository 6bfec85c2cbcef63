"""A machine with commands that stand for Slurm's, on which the programs of requests run in a real bash."""

from __future__ import annotations

import os
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import CommandOutput, Request
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of

T = TypeVar("T")

# Each keeps its arguments, and does or fails with what files of its name say.
HEAD = """#!/bin/bash
name=${0##*/}
printf '%s\\n' "$*" >>"$SLURM_STATE/$name.calls"
if [ -e "$SLURM_STATE/$name.meanwhile" ]; then . "$SLURM_STATE/$name.meanwhile"; fi
if [ -e "$SLURM_STATE/$name.fails" ]; then cat "$SLURM_STATE/$name.fails" >&2; exit 1; fi
"""
COMMANDS = {
    # The queue has a line for each job: its id, state and name; all have the same comment.
    "squeue": """
for word; do [[ $word != --format=* ]] || format=${word#*=}; done
[ ! -e "$SLURM_STATE/comment" ] || comment=$(cat "$SLURM_STATE/comment")
while read -r id state name; do
    line=${format//%i/$id} line=${line//%T/$state} line=${line//%k/$comment} line=${line//%j/$name}
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
    "scancel": """
for word; do sed -Ei "/ COMPLETED /! s/^($word(_[^ ]*)?) [A-Z]+ /\\1 CANCELLED /" "$SLURM_STATE/queue"; done
""",
    "scontrol": """
ids=${2#JobId=} name=
for word; do [[ $word != JobName=* ]] || name=${word#*=}; done
# As slurmctld does: elements that have ended keep their name, and there is an error for them.
ended="(COMPLETED|CANCELLED)" status=0
for id in ${ids//,/ }; do
    [ -z "$name" ] || sed -Ei "/ $ended /! s/^($id(_[^ ]*)?) ([A-Z]+) .*/\\1 \\3 $name/" "$SLURM_STATE/queue"
    grep -Eq "^${id}_[^ ]* $ended " "$SLURM_STATE/queue" || continue
    echo "${id}_[0]: Job has already finished" >&2
    # All but update also tell of those without one.
    [ "$1" = update ] || ! grep "^${id}_" "$SLURM_STATE/queue" | grep -Evq " $ended " || echo "${id}_[1]: No error" >&2
    status=1
done
exit "$status"
""",
    # Refuses a partition, and more jobs than there is room for, and gives out numbers.
    "sbatch": """
array=
for word; do
    [[ $word != --job-name=* ]] || job=${word#*=}
    [[ $word != --array=* ]] || array=${word#*=}
    [[ $word != --partition=* ]] || { echo "sbatch: error: invalid partition specified: ${word#*=}" >&2; exit 1; }
done
exec 7>>"$SLURM_STATE/lock"
flock 7
id=$(($(wc -l <"$SLURM_STATE/sbatch.ids") + 1))
elements=$(for piece in ${array//,/ }; do seq "${piece%-*}" "${piece#*-}"; done)
if [ -e "$SLURM_STATE/room" ]; then
    count=$(wc -w <<<"${elements:-0}")
    room=$(cat "$SLURM_STATE/room")
    if [ "$count" -gt "$room" ]; then
        [ ! -e "$SLURM_STATE/no_room" ] || { cat "$SLURM_STATE/no_room" >&2; exit 1; }
        echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
        echo "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2
        exit 1
    fi
    echo "$((room - count))" >"$SLURM_STATE/room"
fi
echo "$job" >>"$SLURM_STATE/sbatch.ids"
if [ -z "$array" ]; then
    echo "$id PENDING $job" >>"$SLURM_STATE/queue"
else
    for one in $elements; do echo "${id}_$one PENDING $job" >>"$SLURM_STATE/queue"; done
fi
echo "$id"
""",
}


@dataclass
class Slurm:
    """A machine with Slurm's commands."""

    folder: Path
    #: More variables of the program, and the command that it runs in.
    variables: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()

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

    def meanwhile(self, command: str, withdrawn: BatchJob) -> None:
        """A submission is withdrawn during a command; a moment later, as files have no finer times."""
        words = f"sleep 0.02; touch {self.withdrawals}/{key_of(withdrawn.name or '')}\n"
        (self.state / f"{command}.meanwhile").write_text(words)

    @property
    def withdrawals(self) -> Path:
        return self.folder / ".cache" / "airflow-soperator" / "withdrawn"

    def withdrawn(self) -> set[str]:
        return {path.name for path in self.withdrawals.iterdir()}

    def states(self) -> dict[str, str]:
        """The states of the jobs in the queue, by name."""
        rows = (line.split() for line in (self.state / "queue").read_text().splitlines())
        return {name: state for _, state, name in rows}

    def rows(self) -> list[tuple[str, ...]]:
        """The jobs in the queue."""
        return [tuple(line.split()) for line in (self.state / "queue").read_text().splitlines()]

    def put_in_queue(self, *rows: str) -> None:
        with (self.state / "queue").open("a") as lines:
            lines.writelines(f"{row}\n" for row in rows)

    def ask(self, *jobs: BatchJob) -> tuple[Submitted, ...]:
        return self.take(SubmitOnce(jobs=jobs))

    def take(self, request: Request[T]) -> T:
        command = request.command()
        variables = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SLURM_STATE": str(self.state),
            **self.variables,
        }
        argv = (*self.within, *command.argv)
        ended = subprocess.run(argv, input=command.stdin, env=variables, capture_output=True, check=False)
        return request.read(CommandOutput(ended.returncode, ended.stdout, ended.stderr))

    def error(self, *jobs: BatchJob) -> SlurmError:
        with pytest.raises(SlurmError) as caught:
            self.ask(*jobs)
        return caught.value


def past(slurm: Slurm, number: int | str, user: int, job: BatchJob) -> None:
    """Put a job of a user into accounting."""
    with (slurm.state / "past").open("a") as lines:
        lines.write(f"{number} {user} {job.name}\n")


def keyed(name: str) -> BatchJob:
    """A job of this name, with a key of its own."""
    return BatchJob(command="true", name=SubmissionKey.derive("dag", "run", name, -1, "1").name(name))


def keys_of(*jobs: BatchJob) -> tuple[SubmissionKey, ...]:
    return SubmitOnce(jobs=jobs).submission_keys()


def mapped_jobs(count: int) -> tuple[BatchJob, ...]:
    """Equal jobs of the mapped tasks of one."""
    run = uuid.uuid4().hex
    keys = [SubmissionKey.derive("dag", run, "task", 0, 1, element=index) for index in range(count)]
    return tuple(BatchJob(command="true", name=key.name(f"fit.{key.element}.dag")) for key in keys)
