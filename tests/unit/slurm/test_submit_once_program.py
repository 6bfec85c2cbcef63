"""The program of ``SubmitOnce`` in a real bash."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from airflow_provider_soperator.slurm.errors import (
    AccountingUnreachable,
    AuthenticationFailed,
    CommandNotFound,
    ControllerUnreachable,
    NotPermitted,
    NotReached,
    QueueFull,
    SlurmError,
    SubmitIncomplete,
    SubmitRefused,
)
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import submission
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from tests.submissions import new_jobs
from tests.unit.slurm.machine import COMMANDS, Slurm, keyed, mapped_jobs, past


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


def test_a_job_is_submitted_from_its_folder(slurm: Slurm, tmp_path: Path) -> None:
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    there.mkdir()
    slurm.within = ("env", "-C", str(home))
    slurm.put("sbatch", 'pwd >>"$SLURM_STATE/folders"' + COMMANDS["sbatch"])
    asked = [
        # A script is looked for from the home; and where there is no such folder, Slurm has another one for the job.
        *(({"chdir": str(there)}, there), ({}, home), ({"chdir": "there"}, home), ({"chdir": f"{there}/none"}, home)),
        ({"chdir": str(there), "command": None, "remote_script": "/x.sh"}, there),
        ({"chdir": str(there), "command": None, "remote_script": "x.sh"}, home),
    ]
    for fields, _ in asked:
        [job] = new_jobs()
        slurm.ask(job.replace(**fields))
    slurm.ask(*(job.replace(chdir=str(there)) for job in mapped_jobs(2)))
    # Where its script has it run, a job goes from the home, alone and as an element of an array.
    of_script = f"#!/bin/sh\n#SBATCH --chdir={there}\ntrue\n"
    [job] = new_jobs()
    slurm.ask(job.replace(command=None, script=of_script))
    slurm.ask(*(job.replace(command=None, script=of_script) for job in mapped_jobs(2)))
    folders = (slurm.state / "folders").read_text().splitlines()
    assert folders == [str(folder) for folder in (*(folder for _, folder in asked), there, home, home)]


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


def test_a_job_that_sbatch_has_waited_for_is_submitted_whatever_its_end(slurm: Slurm) -> None:
    slurm.put("sbatch", COMMANDS["sbatch"] + "exit 3\n")
    [job], mapped = new_jobs(), mapped_jobs(2)
    assert [str(one.id) for one in slurm.ask(job, *mapped)] == ["2", "1_0", "1_1"]


def test_the_logins_settings_do_not_make_a_submission_wait_for_the_job(slurm: Slurm) -> None:
    slurm.variables["SBATCH_WAIT"] = "1"
    slurm.put("sbatch", '[ -z "$SBATCH_WAIT" ] || { echo "sbatch: error: waits" >&2; exit 1; }' + COMMANDS["sbatch"])
    assert slurm.ask(*new_jobs()) == (Submitted(JobId(1)),)


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


def test_a_full_queue_is_not_tried_with_each_job(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if sbatch took its two minutes.
    monkeypatch.setattr(submission, "WORK_TIME", 0)
    (slurm.state / "room").write_text("0")
    (slurm.state / "no_room").write_text("Batch job submission failed: Resource temporarily unavailable\n")
    answers = slurm.ask(*new_jobs(10))
    assert [type(one.error) for one in answers] == [QueueFull] * 4 + [NotReached] * 6
    assert len(slurm.calls("sbatch").splitlines()) == 4


def test_a_job_of_another_user_with_the_same_name_is_not_adopted(slurm: Slurm) -> None:
    [job] = new_jobs()
    past(slurm, 41, os.geteuid() + 1, job)
    assert slurm.ask(job) == (Submitted(JobId(1)),)
    [job] = new_jobs()
    past(slurm, 42, os.geteuid(), job)
    assert slurm.ask(job) == (Submitted(JobId(42), adopted=True),)


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
