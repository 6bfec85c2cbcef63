"""Submissions that are withdrawn, before, while and after their program runs."""

from __future__ import annotations

import os

import pytest

from airflow_provider_soperator.slurm.errors import ControllerUnreachable, SubmissionWithdrawn
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests.submission import CancelWithdrawn, Submitted, Withdraw
from airflow_provider_soperator.slurm.states import JobBase, JobFlag, JobState
from tests.submissions import new_jobs
from tests.unit.slurm.machine import Slurm, keys_of, mapped_jobs


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


def test_a_withdrawal_that_is_void_by_the_time_of_scancel_is_not_carried_out(slurm: Slurm) -> None:
    ended, kept = new_jobs(2)
    [there, _] = slurm.ask(ended, kept)
    slurm.take(Withdraw(keys_of(kept)))
    slurm.take(Withdraw(keys_of(ended), names=("once.withdrawn",)))
    # Another try goes on with it while the other one is renamed.
    [key] = keys_of(kept)
    (slurm.state / "scontrol.meanwhile").write_text(f"rm -f {slurm.withdrawals}/{key}\n")
    slurm.take(CancelWithdrawn())
    assert slurm.calls("scancel").split() == [str(there.id)]


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
