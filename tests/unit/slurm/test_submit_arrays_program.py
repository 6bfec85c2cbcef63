"""The program of mapped tasks, whose equal jobs are submitted as an array."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from airflow_provider_soperator.slurm.errors import LimitExceeded, QueueFull, SubmissionWithdrawn, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests.submission import Submitted, Withdraw
from tests.submissions import new_jobs
from tests.unit.slurm.machine import Slurm, keys_of, mapped_jobs, past


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


@pytest.mark.parametrize("words", ["Resource temporarily unavailable", "MaxJobCount limit reached"])
def test_what_a_full_queue_has_no_room_for_is_submitted_later(slurm: Slurm, words: str) -> None:
    (slurm.state / "room").write_text("7")
    (slurm.state / "no_room").write_text(f"sbatch: error: Batch job submission failed: {words}\n")
    answers = slurm.ask(*mapped_jobs(40))
    assert sum(one.id is not None for one in answers) == 7
    assert {type(one.error) for one in answers if one.id is None} == {QueueFull}


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
