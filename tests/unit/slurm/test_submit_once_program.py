"""The program of ``SubmitOnce`` in a real bash, on commands that stand for Slurm's."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.slurm.cluster_records import RateLimit
from airflow_provider_soperator.slurm.errors import (
    AccountingUnreachable,
    AuthenticationFailed,
    CommandNotFound,
    ControllerUnreachable,
    LimitExceeded,
    NotPermitted,
    NotReached,
    SlurmError,
    SubmissionWithdrawn,
    SubmitIncomplete,
    SubmitRefused,
    TogetherRefused,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CommandOutput, Request, submission
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT, run_steps
from airflow_provider_soperator.slurm.requests.submission import (
    CancelWithdrawn,
    SubmitOnce,
    Submitted,
    Together,
    Withdraw,
)
from airflow_provider_soperator.slurm.states import JobBase, JobFlag, JobState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from tests.submissions import after, new_jobs

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
ids= name=
for word; do
    [[ $word != JobId=* ]] || ids=${word#*=}
    [[ $word != JobName=* ]] || name=${word#*=}
done
if [ -n "$name" ]; then
    # As slurmctld does: elements that have ended keep theirs, for which there is an error.
    for id in ${ids//,/ }; do
        sed -Ei "/ (COMPLETED|CANCELLED) /! s/^($id(_[^ ]*)?) ([A-Z]+) .*/\\1 \\3 $name/" "$SLURM_STATE/queue"
    done
    if grep -Eq "^(${ids//,/|})_[^ ]* COMPLETED " "$SLURM_STATE/queue"; then
        echo "Job has already finished for job array element" >&2
        exit 1
    fi
fi
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


@pytest.mark.parametrize("comment", ["two\nlines of words", "of another.af-aaaaaaaaaaaa", "\n"])
def test_a_comment_hides_no_job(slurm: Slurm, comment: str) -> None:
    [job] = new_jobs()
    [first] = slurm.ask(job)
    (slurm.state / "comment").write_text(comment)
    assert slurm.ask(job) == (Submitted(first.id, adopted=True),)


def test_a_script_that_cannot_be_written_is_not_submitted_in_part(slurm: Slurm) -> None:
    # Wherever the program keeps its files, there is no room for a script.
    full = 'for number in {0..9}; do ln -s /dev/full "$made/body.$number"; done'
    slurm.put("mktemp", f'made=$(/usr/bin/mktemp "$@") || exit; [ ! -d "$made" ] || {full}; echo "$made"')
    error = slurm.error(*new_jobs(2))
    assert isinstance(error, SubmitIncomplete)
    assert "No space left on device" in str(error)
    assert (error.retryable, slurm.submitted()) == (True, [])


def test_what_the_users_own_settings_of_bash_add_is_no_part_of_an_answer(slurm: Slurm) -> None:
    own = slurm.folder / "own.bash"
    # Slurm's commands here are scripts, which a program of one's own is not.
    own.write_text("case $- in *c*) echo Lmod is loaded ;; esac\n")
    slurm.variables |= {"BASH_ENV": str(own), "BASH_FUNC_sbatch%%": "() { echo wrapped; }"}
    assert {one.id for one in slurm.ask(*new_jobs(2))} == {JobId(1), JobId(2)}


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_an_answer_for_which_there_is_no_room_is_not_taken_for_all_of_it(slurm: Slurm, command: str) -> None:
    # Slurm's commands succeed without a word on a full disk, which is here one that takes no files of more than 16 KiB.
    slurm.put(command, "exec 2>/dev/null\n" + COMMANDS[command].replace("names=,${word#*=},", ":") + "exit 0")
    slurm.within = ("bash", "-c", 'trap "" XFSZ; ulimit -f 16; exec "$@"', "full")
    [job] = new_jobs()
    if command == "squeue":
        slurm.put_in_queue(*(f"{number} RUNNING other" for number in range(1, 500)), f"500 RUNNING {job.name}")
    else:
        (slurm.state / "past").write_text(f"1 {os.geteuid()} {keyed('other').name}\n" * 500)
        past(slurm, 501, os.geteuid(), job)
    error = slurm.error(job)
    assert isinstance(error, SubmitIncomplete)
    assert "File too large" in str(error)
    assert slurm.submitted() == []


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


def test_a_home_that_cannot_be_written_is_no_matter_of_rights_in_slurm(slurm: Slurm) -> None:
    slurm.put("mkdir", "")
    slurm.fail("mkdir", "mkdir: cannot create directory '/home/me': Permission denied")
    error = slurm.error(*new_jobs())
    assert (type(error), error.passing) == (NotPermitted, False)
    assert str(error).endswith("the user needs a home there that it may write")


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
    jobs = new_jobs(10)
    goes = [slurm.ask(*jobs) for _ in range(3)]
    # Each goes on where the one before has ended.
    assert [sum(one.id is not None for one in answers) for answers in goes] == [4, 8, 10]
    left = [one.error for answers in goes for one in answers if one.error]
    assert all(isinstance(error, NotReached) and error.retryable for error in left)
    assert sorted(slurm.submitted()) == sorted(str(job.name) for job in jobs)


def past(slurm: Slurm, number: int | str, user: int, job: BatchJob) -> None:
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


# Withdrawals


def keys_of(*jobs: BatchJob) -> tuple[SubmissionKey, ...]:
    return SubmitOnce(jobs=jobs).submission_keys()


@pytest.mark.parametrize("command", ["flock", "squeue", "sacct"])
def test_a_job_that_is_withdrawn_while_its_submission_waits_is_not_submitted(slurm: Slurm, command: str) -> None:
    ended, other = new_jobs(2)
    if command == "flock":
        slurm.put(command, "")
    slurm.meanwhile(command, ended)
    first, second = slurm.ask(ended, other)
    assert isinstance(first.error, SubmissionWithdrawn)
    assert second == Submitted(JobId(1))
    assert slurm.submitted() == [other.name]


def test_a_job_that_is_withdrawn_while_sbatch_submits_it_is_cancelled(slurm: Slurm) -> None:
    ended, other = new_jobs(2)
    slurm.meanwhile("sbatch", ended)
    first, second = slurm.ask(ended, other)
    assert isinstance(first.error, SubmissionWithdrawn)
    assert second.id is not None
    assert slurm.states() == {ended.name: "CANCELLED", other.name: "PENDING"}


def test_a_job_of_an_earlier_program_is_withdrawn_too(slurm: Slurm) -> None:
    ended, other = new_jobs(2)
    slurm.ask(ended, other)
    slurm.meanwhile("squeue", ended)
    assert [type(one.error) for one in slurm.ask(ended, other)] == [SubmissionWithdrawn, type(None)]
    assert slurm.states() == {ended.name: "CANCELLED", other.name: "PENDING"}


def test_a_submission_that_begins_after_a_withdrawal_is_not_met_by_it(slurm: Slurm) -> None:
    new, there = new_jobs(2)
    slurm.ask(there)
    slurm.take(Withdraw(keys_of(new, there)))
    assert slurm.ask(new, there) == (Submitted(JobId(2)), Submitted(JobId(1), adopted=True))
    assert set(slurm.states().values()) == {"PENDING"}
    # Nor are those jobs by the programs that come later.
    assert slurm.withdrawn() == set()


def test_what_could_not_be_cancelled_with_its_withdrawal_is_cancelled_by_the_next_submission(slurm: Slurm) -> None:
    ended, kept, other, another = new_jobs(4)
    slurm.ask(ended, kept)
    slurm.take(Withdraw(keys_of(ended, kept)))
    # Another try goes on with it.
    slurm.take(Withdraw(keys_of(kept), is_void=True))
    slurm.fail("scancel", "slurmctld is away")
    assert slurm.ask(other) == (Submitted(JobId(3)),)
    assert slurm.states()[str(ended.name)] == "PENDING"
    (slurm.state / "scancel.fails").unlink()
    assert slurm.ask(another) == (Submitted(JobId(4)),)
    states = slurm.states()
    assert states.pop(str(ended.name)) == "CANCELLED"
    assert set(states.values()) == {"PENDING"}


def test_whoever_polls_cancels_what_could_not_be_cancelled(slurm: Slurm) -> None:
    ended, kept = new_jobs(2)
    elements = mapped_jobs(3)
    submitted = slurm.ask(ended, kept, *elements)
    slurm.take(Withdraw(keys_of(ended, elements[1])))
    slurm.take(CancelWithdrawn())
    assert sorted(slurm.calls("scancel").split()) == sorted(str(submitted[place].id) for place in (0, 3))
    # A submission does the same in its end, and nothing is looked for where nothing is withdrawn.
    slurm.put("flock", "exit 1\n")
    looks = slurm.calls("squeue")
    slurm.take(CancelWithdrawn())
    for file in slurm.withdrawals.iterdir():
        file.unlink()
    slurm.put("flock", "")
    slurm.take(CancelWithdrawn())
    assert slurm.calls("squeue") == looks


def test_so_is_a_job_in_any_state_from_which_it_may_go_on(slurm: Slurm) -> None:
    states = [JobState.parse(state.value) for state in (*JobBase, *JobFlag)]
    jobs = dict(zip(states, new_jobs(len(states)), strict=True))
    slurm.put_in_queue(*(f"{number} {state} {jobs[state].name}" for number, state in enumerate(states, start=1)))
    slurm.take(Withdraw(keys_of(*jobs.values())))
    slurm.take(CancelWithdrawn())
    # squeue does not show that a node boots for a job.
    left = {
        number
        for number, state in enumerate(states, start=1)
        if not state.is_finished and str(state) != "POWER_UP_NODE"
    }
    assert set(map(int, slurm.calls("scancel").split())) == left


def test_what_is_withdrawn_is_kept_while_slurmctld_is_away(slurm: Slurm) -> None:
    [ended] = new_jobs()
    slurm.ask(ended)
    slurm.take(Withdraw(keys_of(ended)))
    slurm.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(ControllerUnreachable):
        slurm.take(CancelWithdrawn())
    assert slurm.withdrawn() == {key.text for key in keys_of(ended)}


def test_withdrawals_are_kept_as_long_as_they_can_meet_something(slurm: Slurm) -> None:
    gone, ended, new = new_jobs(3)
    slurm.ask(ended)
    slurm.fail("scancel", "slurmctld is away")
    slurm.take(Withdraw(keys_of(gone, ended)))
    slurm.ask(new)
    assert slurm.withdrawn() == {key.text for key in keys_of(gone, ended)}
    for file in slurm.withdrawals.iterdir():
        os.utime(file, (0, 0))
    slurm.ask(new)
    assert slurm.withdrawn() == {key.text for key in keys_of(ended)}


def test_there_may_be_nothing_to_withdraw_or_to_take_back(slurm: Slurm) -> None:
    [job] = new_jobs()
    slurm.take(Withdraw(keys_of(job), is_void=True))
    slurm.take(Withdraw(keys_of(job)))
    slurm.take(Withdraw(keys_of(job), is_void=True))
    assert slurm.withdrawn() == set()


# Jobs that are submitted together


def chain() -> tuple[BatchJob, ...]:
    first, second, third = new_jobs(3)
    return first, after(second, first), after(third, second, kind="afterany")


def taken_back(*jobs: BatchJob) -> Withdraw:
    """The first request of the process that takes them back."""
    return cast("Withdraw", next(submissions.take_back(jobs, None)))


# One is submitted last, beside others or at an earlier time.
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_withdrawn_as_its_jobs_are_submitted_together_frees_their_keys(slurm: Slurm, number: int) -> None:
    jobs = chain()
    slurm.meanwhile("sbatch", jobs[number])
    together = SubmitOnce(jobs=jobs, together=Together.START)
    answers = slurm.take(together)
    assert isinstance(answers[number].error, SubmissionWithdrawn)
    assert {row[1:] for row in slurm.rows()} == {("CANCELLED", "once.withdrawn")}
    assert "release" not in slurm.calls("scontrol")
    # Nothing is left for the next one to do.
    assert slurm.withdrawn() == {str(key_of(jobs[number].name or ""))}


def test_whoever_cancels_what_was_submitted_together_frees_its_keys(slurm: Slurm) -> None:
    jobs = chain()
    slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    slurm.take(taken_back(*jobs))
    # It is renamed first; a job that cannot be renamed is left to the next one.
    slurm.fail("scontrol", "slurm_update error: Unable to contact slurm controller (connect failure)")
    slurm.take(CancelWithdrawn())
    assert {state for _, state, _ in slurm.rows()} == {"PENDING"}
    (slurm.state / "scontrol.fails").unlink()
    slurm.ask(*new_jobs())
    assert [row[1:] for row in slurm.rows()[:3]] == [("CANCELLED", "once.withdrawn")] * 3
    hold, rename = slurm.calls("scontrol").splitlines()[-2:]
    assert sorted(hold.removeprefix("hold ").split(",")) == ["1", "2", "3"]
    assert rename.endswith(" JobName=once.withdrawn")
    answers = slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    assert [one.adopted for one in answers] == [False] * 3


@pytest.mark.parametrize("ends", [CancelWithdrawn(), None])
def test_a_job_that_has_lost_its_key_is_cancelled_by_the_next_one(slurm: Slurm, ends: CancelWithdrawn | None) -> None:
    """slurmctld renames it, and then goes away, or the process ends."""
    jobs = chain()
    end = ends or SubmitOnce(jobs=jobs, together=Together.END)
    slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    slurm.take(taken_back(*jobs))
    slurm.fail("scancel", "scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation")
    with contextlib.suppress(SlurmError):
        slurm.take(end)
    assert {row[1:] for row in slurm.rows()} == {("PENDING", "once.withdrawn")}
    (slurm.state / "scancel.fails").unlink()
    slurm.put_in_queue("8 PENDING once.withdrawn")
    slurm.take(CancelWithdrawn())
    assert slurm.rows() == [
        *((str(number), "CANCELLED", "once.withdrawn") for number in (1, 2, 3)),
        # Somebody's own.
        ("8", "PENDING", "once.withdrawn"),
    ]
    slurm.take(CancelWithdrawn())
    assert slurm.withdrawn() == {key.text for key in keys_of(*jobs)}


def test_an_array_is_cancelled_whatever_has_ended_of_it(slurm: Slurm) -> None:
    [job] = new_jobs()
    slurm.put_in_queue(f"5_0 COMPLETED {job.name}", f"5_1 RUNNING {job.name}", f"5_[2-3] PENDING {job.name}")
    slurm.take(taken_back(job))
    slurm.take(CancelWithdrawn())
    assert [state for _, state, _ in slurm.rows()] == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_what_is_withdrawn_as_several_requests_are_completed_is_refused(slurm: Slurm) -> None:
    jobs = chain()
    slow = RateLimit(bucket=40, refill=1, period=timedelta(seconds=75))

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, SubmitOnce) and request.together is Together.START:
            slurm.meanwhile("squeue", jobs[1])
        return slurm.take(request)

    with pytest.raises(TogetherRefused) as refused:
        run_steps(submissions.submit_together(jobs, None, slow), ask)
    assert isinstance(refused.value.__cause__, SubmissionWithdrawn)
    assert {row[1:] for row in slurm.rows()} == {("CANCELLED", "once.withdrawn")}


def test_who_takes_jobs_back_before_they_are_submitted_still_meets_their_submission(slurm: Slurm) -> None:
    jobs = chain()
    slurm.take(taken_back(*jobs))
    slurm.take(SubmitOnce(jobs=jobs, together=Together.END))
    assert slurm.withdrawn() == {key.text for key in keys_of(*jobs)}
    # The next try begins after that.
    assert [one.error for one in slurm.take(SubmitOnce(jobs=jobs, together=Together.START))] == [None] * 3
    assert slurm.withdrawn() == set()


def killed_during(slurm: Slurm, name: str, *, refuses: bool) -> None:
    """slurmctld is killed before the sbatch of this job, and forgets the job before it."""
    said = "Batch job submission failed: Job dependency problem"
    words = f"""case "$*" in *--job-name={name}*)
        rm "$SLURM_STATE/sbatch.meanwhile"
        sed -i '$d' "$SLURM_STATE/queue"
        {f'echo "sbatch: error: {said}" >&2; exit 1' if refuses else ""} ;;
    esac
    """
    (slurm.state / "sbatch.meanwhile").write_text(words)


@pytest.mark.parametrize("refuses", [True, False])
def test_what_slurmctld_forgets_in_the_midst_is_submitted_anew(slurm: Slurm, refuses: bool) -> None:
    """It refuses a job that waits for one that it has forgotten, unless that number is another's by now."""
    jobs = chain()
    killed_during(slurm, jobs[2].name or "", refuses=refuses)
    request = SubmitOnce(jobs=jobs, together=Together.START)
    with pytest.raises(SubmitIncomplete, match="has forgotten jobs") as caught:
        slurm.take(request)
    assert caught.value.retryable
    answers = slurm.take(request)
    assert [one.adopted for one in answers] == [True, False, not refuses]
    assert set(slurm.states()) == {job.name for job in jobs}
    [second, third] = [str(one.id) for one in answers[1:]]
    update = f"update JobId={third} Dependency=afterany:{second}\n"
    # A job that was there waited for the number of the forgotten one.
    assert (update in slurm.calls("scontrol")) == (not refuses)
    assert (f"--dependency=afterany:{second}\n" in slurm.calls("sbatch")) == refuses
    slurm.take(request)
    assert slurm.calls("scontrol").count("Dependency=") == (not refuses)


def test_a_dependency_that_slurm_refuses_otherwise_is_refused(slurm: Slurm) -> None:
    jobs = chain()
    slurm.fail("sbatch", "sbatch: error: Batch job submission failed: Job dependency problem")
    answers = slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    assert isinstance(answers[0].error, SubmitRefused)


# Arrays of mapped tasks


def mapped_jobs(count: int) -> tuple[BatchJob, ...]:
    run = uuid.uuid4().hex
    keys = [SubmissionKey.derive("dag", run, "task", 0, 1, element=index) for index in range(count)]
    return tuple(BatchJob(command="true", name=key.name(f"fit.{key.element}.dag")) for key in keys)


def elements(job: int, *indices: int, adopted: bool = False) -> tuple[Submitted, ...]:
    return tuple(Submitted(JobId(job, index), adopted=adopted) for index in indices)


def shared_name(jobs: Sequence[BatchJob]) -> str:
    [key, *_] = keys_of(*jobs)
    return key.shared.name("fit.dag")


def test_equal_jobs_of_mapped_tasks_go_as_one_array(slurm: Slurm) -> None:
    jobs = mapped_jobs(40)
    assert slurm.ask(*jobs) == elements(1, *range(40))
    assert slurm.ask(*jobs) == elements(1, *range(40), adopted=True)
    assert slurm.submitted() == [shared_name(jobs)]
    assert "--array=0-39" in slurm.calls("sbatch")


def test_those_that_are_there_are_not_in_the_next_array(slurm: Slurm) -> None:
    jobs = mapped_jobs(9)
    first = slurm.ask(*jobs[2:5])
    assert first == elements(1, 2, 3, 4)
    # One that was submitted on its own, and has left the queue.
    [single] = slurm.ask(jobs[7])
    past(slurm, 2, os.geteuid(), jobs[7])
    (slurm.state / "queue").write_text("")
    slurm.put_in_queue(f"1_[2-4:1%2] PENDING {shared_name(jobs)}")
    answers = slurm.ask(*jobs)
    assert answers[2:5] == elements(1, 2, 3, 4, adopted=True)
    assert answers[7] == Submitted(single.id, adopted=True)
    assert [answers[index] for index in (0, 1, 5, 6, 8)] == [*elements(3, 0, 1, 5, 6, 8)]
    assert "--array=0-1,5-6,8" in slurm.calls("sbatch")


def test_those_that_accounting_has_are_not_in_the_next_array(slurm: Slurm) -> None:
    jobs = mapped_jobs(3)
    for row in ("41_1", "41_[2-5]"):
        past(slurm, row, os.geteuid(), jobs[0].replace(name=shared_name(jobs)))
    assert slurm.ask(*jobs) == (*elements(1, 0), *elements(41, 1, 2, adopted=True))


def test_of_two_arrays_the_lower_number_stays_element_by_element(slurm: Slurm) -> None:
    jobs = mapped_jobs(4)
    # On another login node a lower one has come meanwhile, which has two of them.
    (slurm.state / "sbatch.ids").write_text("another\n")
    row = f"1_[1-2] PENDING {shared_name(jobs)}"
    (slurm.state / "sbatch.meanwhile").write_text(f"echo '{row}' >>{slurm.state}/queue\n")
    answers = slurm.ask(*jobs)
    assert [str(one.id) for one in answers] == ["2_0", "1_1", "1_2", "2_3"]
    assert slurm.calls("scancel").split() == ["2_1", "2_2"]


def test_an_element_can_be_withdrawn(slurm: Slurm) -> None:
    jobs = mapped_jobs(4)
    slurm.meanwhile("squeue", jobs[2])
    assert [type(one.error) for one in slurm.ask(*jobs)] == [type(None), type(None), SubmissionWithdrawn, type(None)]
    assert "--array=0-1,3" in slurm.calls("sbatch")
    (slurm.state / "squeue.meanwhile").unlink()
    slurm.meanwhile("sbatch", jobs[2])
    assert isinstance(slurm.ask(jobs[2], *mapped_jobs(2))[0].error, SubmissionWithdrawn)


def test_an_element_that_could_not_be_cancelled_is_cancelled_by_the_next_submission(slurm: Slurm) -> None:
    jobs = mapped_jobs(4)
    slurm.ask(*jobs)
    (slurm.state / "queue").write_text("")
    slurm.put_in_queue(f"1_[0-1,3] PENDING {shared_name(jobs)}", f"1_2 RUNNING {shared_name(jobs)}")
    slurm.take(Withdraw(keys_of(jobs[2], jobs[3])))
    slurm.ask(*new_jobs())
    assert sorted(slurm.calls("scancel").split()) == ["1_2", "1_3"]


@pytest.mark.parametrize("room", [0, 1, 7, 12, 40])
def test_where_a_limit_refuses_an_array_as_many_as_there_is_room_for_are_submitted(slurm: Slurm, room: int) -> None:
    (slurm.state / "room").write_text(str(room))
    answers = slurm.ask(*mapped_jobs(40))
    assert sum(one.id is not None for one in answers) == room
    assert {type(one.error) for one in answers if one.id is None} <= {LimitExceeded}
    assert len(slurm.calls("sbatch").splitlines()) <= 12


def test_accounting_is_asked_for_some_hundred_names_at_a_time(slurm: Slurm) -> None:
    jobs = mapped_jobs(900)
    past(slurm, 42, os.geteuid(), jobs[899])
    assert slurm.ask(*jobs)[899] == Submitted(JobId(42), adopted=True)
    asked = slurm.calls("sacct").splitlines()
    assert [len(line.split("--name=")[1].split()[0].split(",")) for line in asked] == [500, 401]


def test_an_array_that_slurm_refuses_is_refused_once(slurm: Slurm) -> None:
    answers = slurm.ask(*(job.replace(partition="nowhere") for job in mapped_jobs(40)))
    assert {type(one.error) for one in answers} == {SubmitRefused}
    assert len(slurm.calls("sbatch").splitlines()) == 1
