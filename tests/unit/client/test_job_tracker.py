"""What is concluded of a job from the queue and accounting, neither of which has the whole truth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_soperator.client.job_tracker import LossLimits, TrackedJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.notations import ExitCode
from tests.unit.client.tracking import past, queued

PATIENCE = LossLimits(unknown=60, runaway=300)


class Seen:
    """A watched job that is looked at round by round, as a book does it."""

    def __init__(self, number: int = 7, name: str = "") -> None:
        self.job = TrackedJob(number, name)
        self.now = 1000.0
        #: Why accounting has not answered, which the poller tells with the status.
        self.trouble = ""

    def look(self, queue: list[Job], accounting: list[AccountingJob] | None = None, after: float = 10.0) -> None:
        """One round; without an answer of accounting if that is None and would have been asked."""
        self.now += after
        self.trouble = ""
        self.job.look_at_queue(queue)
        if self.job.is_open:
            if accounting is None:
                self.job.could_not_ask()
                self.trouble = "slurmdbd is down"
                return
            self.job.look_at_accounting(accounting)
        self.job.judge(self.now, PATIENCE)

    def look_until_over(self, queue: list[Job], accounting: list[AccountingJob], job: str = "") -> float:
        """Seconds from now until it, or a part of it, is over, when nothing changes any more."""
        started = self.now
        while not self.is_over(job or str(self.job.number)):
            assert self.now < started + 1000, "it is never over"
            self.look(queue, accounting)
        return self.now - started

    @property
    def status(self) -> JobStatus:
        return self.status_of(str(self.job.number)) or JobStatus(id=JobId(self.job.number))

    def is_over(self, job: str) -> bool:
        status = self.status_of(job)
        return status is not None and status.is_over

    def status_of(self, job: str) -> JobStatus | None:
        return self.job.status_of(JobId.parse(job), self.job.parts(), self.trouble)


def states(status: JobStatus | None) -> dict[str, str]:
    assert status is not None
    return {str(part.id): str(part.state) for part in status.parts}


@pytest.mark.parametrize(
    ("queue", "accounting", "state", "is_over", "succeeded"),
    [
        ("PENDING", "", "PENDING", False, False),
        ("RUNNING", "RUNNING", "RUNNING", False, False),
        ("COMPLETING", "", "COMPLETING", False, False),
        ("COMPLETED", "", "COMPLETED", True, True),
        ("FAILED", "", "FAILED", True, False),
        ("COMPLETED", "FAILED", "COMPLETED", True, True),
        ("", "COMPLETED", "COMPLETED", True, True),
        ("", "CANCELLED by 1001", "CANCELLED", True, False),
        ("", "RUNNING", "RUNNING", False, False),
        ("", "PENDING", "PENDING", False, False),
        ("", "", "UNKNOWN", False, False),
        ("PENDING", "REQUEUED", "PENDING", False, False),
    ],
)
def test_one_look_at_a_plain_job(queue: str, accounting: str, state: str, is_over: bool, succeeded: bool) -> None:
    seen = Seen()
    seen.look([queued("7", queue)] if queue else [], [past("7", accounting)] if accounting else [])
    status = seen.status
    assert (str(status.state), status.is_over, status.succeeded) == (state, is_over, succeeded)


def test_what_nobody_knows_is_lost_after_a_minute_of_answers() -> None:
    seen = Seen()
    seen.look([], [])
    assert seen.look_until_over([], []) == PATIENCE.unknown
    assert seen.status.lost == "it is in neither the queue nor accounting"
    assert not seen.status.succeeded


def test_a_job_that_vanishes_is_lost_and_not_done() -> None:
    seen = Seen()
    seen.look([queued("7", "RUNNING")], [])
    seen.look([], [])
    assert states(seen.status) == {"7": "RUNNING"}
    assert seen.look_until_over([], []) == PATIENCE.unknown
    assert seen.status.lost == "it was RUNNING when last seen, and is in neither the queue nor accounting now"


def test_a_runaway_of_accounting_is_waited_for_longer() -> None:
    seen = Seen()
    seen.look([], [past("7", "RUNNING")])
    assert seen.look_until_over([], [past("7", "RUNNING")]) == PATIENCE.runaway
    assert seen.status.lost == "accounting has it as RUNNING, but slurmctld does not know it"


def test_time_without_an_answer_does_not_count() -> None:
    seen = Seen()
    seen.look([], [])
    for _ in range(100):
        seen.look([], None)
    assert seen.status.trouble == "slurmdbd is down"
    assert not seen.status.is_over
    # Nor does the time until the first answer after it.
    seen.look([], [], after=5000)
    assert not seen.status.is_over
    assert seen.look_until_over([], []) == PATIENCE.unknown


def test_a_job_that_comes_back_is_missed_afresh() -> None:
    seen = Seen()
    seen.look([], [])
    seen.look([], [], after=50)
    seen.look([queued("7", "RUNNING")])
    seen.look([], [], after=5000)
    assert seen.look_until_over([], []) == PATIENCE.unknown


def test_the_queue_has_the_better_words_for_an_end() -> None:
    seen = Seen(9)
    killed = replace(queued("9_1", "FAILED"), exit_code=ExitCode.parse("137:0"))
    seen.look([killed, queued("9_2", "RUNNING")], [past("9_1", "FAILED"), past("9_2", "RUNNING")])
    seen.look([], [replace(past("9_1", "FAILED"), exit_code=ExitCode.parse("9:0")), past("9_2", "COMPLETED")])
    assert seen.status.parts[0].exit_code.code == 137


def test_a_job_of_another_name_is_another_job() -> None:
    seen = Seen(name="train.af-x")
    seen.look([queued("7", "COMPLETED", name="theirs")], [past("7", "COMPLETED", name="theirs")])
    assert seen.look_until_over([queued("7", "COMPLETED", name="theirs")], []) == PATIENCE.unknown
    assert seen.status.lost == "Slurm lost it and reused its id for a job named theirs"


def test_a_job_is_found_below_another_that_has_its_number_now() -> None:
    seen = Seen(name="mine")
    ours = past("7", "FAILED", name="mine")
    seen.look([queued("7", "RUNNING", name="theirs")], [replace(past("7", "RUNNING", "theirs"), earlier_runs=(ours,))])
    assert states(seen.status) == {"7": "FAILED"}
    assert seen.status.is_over


def test_a_name_is_compared_as_accounting_writes_it() -> None:
    seen = Seen(name='say "hi"')
    seen.look([], [past("7", "COMPLETED", name="say `hi`")])
    assert seen.status.succeeded


def test_names_with_a_key_are_compared_by_it() -> None:
    seen = Seen(name=".af-aaaaaaaaaaaa")
    seen.look([queued("7", "RUNNING", name="fit.af-zzzzzzzzzzzz")], [past("7", "FAILED", name="fit.af-zzzzzzzzzzzz")])
    assert not states(seen.status)
    seen.look([], [past("7", "COMPLETED", name="train.af-aaaaaaaaaaaa")])
    assert seen.status.succeeded


def test_components_of_a_heterogeneous_job_may_have_names_of_their_own() -> None:
    seen = Seen(8, name="lead")
    seen.look([queued("8+0", "COMPLETED", name="lead"), queued("8+1", "RUNNING", name="rest")], [])
    assert states(seen.status) == {"8+0": "COMPLETED", "8+1": "RUNNING"}
    assert not seen.status.is_over
    seen.look([], [past("8+0", "COMPLETED", name="lead"), past("8+1", "FAILED", name="rest")])
    assert states(seen.status) == {"8+0": "COMPLETED", "8+1": "FAILED"}
    assert seen.status.is_over


def test_a_requeued_job_is_not_over() -> None:
    seen = Seen()
    seen.look([queued("7", "FAILED")])
    assert seen.status.is_over
    seen.look([replace(queued("7", "PENDING"), restarts=1)])
    assert not seen.status.is_over
    assert seen.status.parts[0].restarts == 1


def test_an_array_is_over_when_all_its_elements_are() -> None:
    seen = Seen(9)
    seen.look([queued("9_1", "COMPLETED"), queued("9_[2-3]", "PENDING")], None)
    assert seen.status.is_partial
    assert seen.status.trouble == "slurmdbd is down"
    seen.look([queued("9_1", "COMPLETED"), queued("9_[2-3]", "PENDING")], [past("9_1", "COMPLETED")])
    assert not seen.status.is_partial
    # The queue forgets the first, and the second is not in accounting yet.
    seen.look([queued("9_3", "FAILED")], [past("9_1", "COMPLETED"), past("9_2", "RUNNING")])
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "PENDING", "9_3": "FAILED"}
    assert not seen.status.is_over
    seen.look([], [past("9_1", "COMPLETED"), past("9_2", "COMPLETED")])
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "COMPLETED", "9_3": "FAILED"}
    assert seen.status.is_over
    assert not seen.status.succeeded


def test_elements_that_were_cancelled_before_they_started_are_known_by_their_absence() -> None:
    seen = Seen(9)
    seen.look([queued("9_[1-3]", "PENDING")], [])
    after = [queued("9_[3]", "PENDING"), queued("9_1", "COMPLETED")]
    seen.look(after, [past("9_1", "COMPLETED")])
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "PENDING", "9_[3]": "PENDING"}
    for _ in range(6):
        seen.look(after, [past("9_1", "COMPLETED")])
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "CANCELLED", "9_[3]": "PENDING"}
    seen.look([queued("9_3", "COMPLETED")], [])
    assert seen.status.is_over
    assert not seen.status.succeeded


def test_the_command_line_tells_of_elements_that_nobody_has_seen() -> None:
    line = "sbatch --parsable --array=1-3%2 job.sh"
    seen = Seen(9)
    accounting = [past(f"9_{index}", "COMPLETED", submit_line=line) for index in (1, 3)]
    seen.look([], accounting)
    assert seen.status.is_partial
    seen.look_until_over([], accounting)
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "CANCELLED", "9_3": "COMPLETED"}


def test_an_element_that_accounting_alone_has_as_running_keeps_the_array_from_being_over() -> None:
    seen = Seen(9)
    seen.look([], [past("9_1", "COMPLETED"), past("9_2", "RUNNING")])
    assert states(seen.status) == {"9_1": "COMPLETED", "9_2": "RUNNING"}
    assert not seen.status.is_over
    seen.look([], [past("9_1", "COMPLETED"), past("9_2", "FAILED")])
    assert str(seen.status.state) == "FAILED"


@pytest.mark.parametrize("words", ["--array=1-3", "-a -3", "-a 5-2", "-a 0-999999999", "/dev/stdin -a 5-9"])
def test_words_that_look_like_the_option_are_not_taken_for_it(words: str) -> None:
    seen = Seen(9)
    seen.look([], [past("9_5", "COMPLETED", submit_line=f"sbatch job.sh {words}")])
    assert seen.status.succeeded


def test_an_element_that_ran_and_vanished_is_not_taken_for_cancelled() -> None:
    seen = Seen(9)
    seen.look([queued("9_1", "COMPLETED"), queued("9_2", "RUNNING")], [])
    seen.look_until_over([], [past("9_1", "COMPLETED")])
    assert "9_2" in states(seen.status)
    assert seen.status.lost.startswith("it was RUNNING when last seen")


def test_elements_that_leave_the_queue_one_after_the_other_are_each_missed_for_a_time_of_their_own() -> None:
    """Accounting learns of each end 200 s after the queue has forgotten it, so that one of them is always missed."""
    seen = Seen(9)
    for at in range(0, 1000, 10):
        gone, known = min(6, at // 100), max(0, min(6, (at - 200) // 100))
        running = [past(f"9_{index}", "RUNNING" if index >= known else "COMPLETED") for index in range(6)]
        seen.look([queued(f"9_{index}", "RUNNING") for index in range(gone, 6)], running)
        assert not seen.status.lost
    assert seen.status.succeeded


@pytest.mark.parametrize("accounting", ["", "RUNNING"])
def test_an_array_is_not_lost_while_other_elements_of_it_run(accounting: str) -> None:
    seen = Seen(9)
    rows = [past("9_1", accounting)] * bool(accounting)
    seen.look([queued("9_1", "RUNNING"), queued("9_2", "RUNNING")], rows)
    for _ in range(60):
        seen.look([queued("9_2", "RUNNING")], rows)
        assert not seen.status.is_over
    seen.look([queued("9_2", "COMPLETED")], rows)
    assert seen.status.lost


def test_an_element_that_has_just_left_the_queue_is_not_lost_with_one_that_was_missed_before() -> None:
    seen = Seen(9)
    seen.look([queued("9_1", "RUNNING"), queued("9_2", "RUNNING")])
    running = [past("9_1", "RUNNING"), past("9_2", "RUNNING")]
    assert seen.look_until_over([queued("9_2", "RUNNING")], running, "9_1") == PATIENCE.runaway + 10
    assert not seen.status.is_over
    # Accounting does not know of its end yet.
    seen.look([], running)
    assert not seen.is_over("9_2")
    assert not seen.status.is_over
    seen.look([], [past("9_1", "RUNNING"), past("9_2", "COMPLETED")])
    assert states(seen.status_of("9_2")) == {"9_2": "COMPLETED"}
    assert seen.status.lost == "accounting has it as RUNNING, but slurmctld does not know it"


def test_an_element_that_is_looked_for_later_is_not_lost_with_one_that_was_missed_before() -> None:
    name = "fit.af-aaaaaaaaaaaa"
    seen = Seen(9, name)
    seen.job.expect(JobId(9, 1), ())
    seen.look([queued("9_1", "RUNNING", name)])
    for _ in range(4):
        seen.look([], [])
    seen.job.expect(JobId(9, 2), ())
    assert seen.look_until_over([], [], "9_1") == 30
    assert not seen.is_over("9_2")
    seen.look([], [past("9_2", "COMPLETED", name)])
    assert states(seen.status_of("9_2")) == {"9_2": "COMPLETED"}


def test_one_element_is_told_of_alone() -> None:
    seen = Seen(9)
    seen.look([queued("9_1", "FAILED"), queued("9_[2-3]", "PENDING")], [past("9_[1-3]", "PENDING")])
    first, third, fourth = seen.status_of("9_1"), seen.status_of("9_3"), seen.status_of("9_4")
    assert first is not None
    assert first.is_over
    assert states(third) == {"9_3": "PENDING"}
    assert fourth is not None
    assert fourth.lost == "job 9 exists, but has no part 9_4"


def test_a_heterogeneous_job_is_over_when_all_its_components_are() -> None:
    seen = Seen(8)
    seen.look([queued("8+0", "COMPLETED"), queued("8+1", "RUNNING")], [])
    assert not seen.status.is_over
    seen.look([queued("8+1", "COMPLETED")], [past("8+0", "COMPLETED"), past("8+1", "COMPLETED")])
    assert seen.status.succeeded


def test_accounting_has_a_heterogeneous_job_that_waits_as_a_plain_one() -> None:
    seen = Seen(8)
    seen.look([queued("8+0", "PENDING"), queued("8+1", "PENDING")], [past("8", "PENDING")])
    seen.look([queued("8+0", "COMPLETED"), queued("8+1", "COMPLETED")])
    assert states(seen.status) == {"8+0": "COMPLETED", "8+1": "COMPLETED"}
    assert seen.status.succeeded


def test_an_array_that_accounting_does_not_have_yet_may_have_had_more_elements() -> None:
    seen = Seen(9)
    seen.look([queued("9_1", "COMPLETED")], [])
    assert seen.status.is_partial
    assert seen.look_until_over([queued("9_1", "COMPLETED")], []) == PATIENCE.unknown
    assert seen.status.succeeded


def test_without_accounting_an_array_is_what_the_queue_has() -> None:
    job = TrackedJob(9)
    job.look_at_queue([queued("9_1", "COMPLETED")])
    job.do_without_accounting()
    status = job.status_of(JobId(9), job.parts(), "")
    assert status is not None
    assert status.succeeded


@pytest.mark.parametrize(("pause", "lost"), [(250.0, False), (600.0, True)])
def test_without_accounting_elements_that_waited_may_have_run_and_been_forgotten_since(
    pause: float, lost: bool
) -> None:
    job, at = TrackedJob(9), 0.0
    for rows, after in [(["9_0 RUNNING", "9_1 PENDING"], 10.0), (["9_0 COMPLETED"], pause), (["9_0 COMPLETED"], 100.0)]:
        at += after
        job.look_at_queue([queued(*row.split()) for row in rows])
        job.do_without_accounting()
        job.judge(at, PATIENCE)
    status = job.status_of(JobId(9), job.parts(), "")
    assert status is not None
    assert bool(status.lost) is lost
    assert ("CANCELLED" in states(status).values()) is not lost


def test_without_accounting_indices_that_do_not_fit_what_is_seen_are_not_believed() -> None:
    job = TrackedJob(9)
    job.expect(JobId(9), {1, 2, 3})
    job.look_at_queue([queued("9_5", "COMPLETED")])
    job.do_without_accounting()
    status = job.status_of(JobId(9), job.parts(), "")
    assert status is not None
    assert status.succeeded
