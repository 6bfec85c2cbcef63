"""Reports of jobs: one shape for all, from which the status can be read again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, AccountingStep, Job, JobStatus
from airflow_provider_soperator.slurm.job_reports import report_of, status_of
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import JobState

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)


def part(job: str, state: str = "COMPLETED", code: int = 0, **fields: Any) -> Job:
    made = {"raw_id": 10, "name": "fit", "nodelist": "worker-0", "stdout": "/root/%x-%A_%a.out", "workdir": "/root"}
    times = {"submitted": NOON, "started": NOON, "ends": NOON + 90 * SECOND}
    return Job(
        id=JobId.parse(job), state=JobState.parse(state), exit_code=ExitCode(code), **{**made, **times, **fields}
    )


PLAIN = JobStatus(id=JobId(7), parts=(part("7", stdout="%j.out", raw_id=7),))
ARRAY = JobStatus(
    id=JobId(7),
    parts=(
        part("7_0", restarts=1),
        part("7_1", "FAILED", 3, nodelist="worker-[2-3]", started=NOON + SECOND, ends=NOON + 100 * SECOND),
        part("7_2", "CANCELLED by 1001"),
    ),
)
HET = JobStatus(id=JobId(7), parts=(part("7+0", stdout="/root/%A.out"), part("7+1", nodelist="worker-1", stdout="")))
LOST = JobStatus(id=JobId(7), lost="it is in neither the queue nor accounting")


@pytest.mark.parametrize("status", [PLAIN, ARRAY, HET, LOST])
def test_each_report_and_each_part_of_one_has_the_same_fields(status: JobStatus) -> None:
    plain, report = report_of(PLAIN), json.loads(json.dumps(report_of(status)))
    assert report.keys() == plain.keys()
    for one in report["parts"]:
        assert one.keys() == plain.keys() - {"parts", "lost"}


@pytest.mark.parametrize("status", [PLAIN, ARRAY, HET, LOST])
def test_the_end_of_a_job_can_be_judged_by_its_report(status: JobStatus) -> None:
    again = status_of(json.loads(json.dumps(report_of(status))))
    assert (again.state, again.succeeded, again.lost) == (status.state, status.succeeded, status.lost)
    assert str(failure(again)) == str(failure(status))
    assert [one.id for one in again.parts] == [one.id for one in status.parts]


def test_the_whole_of_an_array_is_what_all_of_its_elements_are_together() -> None:
    report = report_of(ARRAY)
    assert (report["job_id"], report["raw_id"], report["name"]) == ("7", 7, "fit")
    # Of the element that the failure names.
    assert (report["state"], report["exit_code"]) == ("FAILED", "3:0")
    assert report["nodes"] == "worker-[0,2-3]"
    assert report["restarts"] == 1
    assert (report["started"], report["ended"]) == (NOON.isoformat(), (NOON + 100 * SECOND).isoformat())
    assert report["elapsed"] == 100
    assert report["output"] == "/root/fit-7_%a.out"
    assert [one["job_id"] for one in report["parts"]] == ["7_0", "7_1", "7_2"]
    assert [one["output"] for one in report["parts"]] == [f"/root/fit-7_{index}.out" for index in range(3)]
    assert [one["cancelled_by"] for one in report["parts"]] == [None, None, 1001]


def test_a_heterogeneous_job_writes_where_its_first_component_does() -> None:
    assert report_of(HET)["output"] == "/root/7.out"


def test_paths_without_a_common_pattern_are_those_of_the_parts_only() -> None:
    # As an older slurmrestd has them.
    expanded = tuple(part(f"7_{index}", stdout=f"/root/7_{index}.out") for index in range(2))
    report = report_of(JobStatus(id=JobId(7), parts=expanded))
    assert report["output"] == ""
    assert [one["output"] for one in report["parts"]] == ["/root/7_0.out", "/root/7_1.out"]


def test_an_element_that_never_ran_leaves_the_pattern_of_the_others() -> None:
    report = report_of(JobStatus(id=JobId(7), parts=(part("7_0", "CANCELLED", stdout="", workdir=""), part("7_1"))))
    assert report["output"] == "/root/fit-7_%a.out"


def test_of_a_job_that_was_lost_only_that_is_known() -> None:
    report = report_of(LOST)
    assert (report["state"], report["lost"]) == ("UNKNOWN", LOST.lost)
    assert report["exit_code"] is report["started"] is report["elapsed"] is None


def test_a_job_that_runs_has_no_exit_code_yet() -> None:
    running = JobStatus(id=JobId(7), parts=(part("7", "RUNNING", time_used=5 * SECOND),))
    report = report_of(running)
    assert (report["exit_code"], report["ended"], report["elapsed"]) == (None, None, 5)


def accounted(job: str, seconds: int, tres: str, *steps: AccountingStep, **fields: Any) -> AccountingJob:
    state = JobState.parse("COMPLETED")
    return AccountingJob(
        id=JobId.parse(job), state=state, elapsed=timedelta(seconds=seconds), tres=tres, steps=steps, **fields
    )


def step(cpu: float | None, total: int | None) -> AccountingStep:
    time = None if cpu is None else timedelta(seconds=cpu)
    return AccountingStep(id=JobId(7), cpu_time=time, total_rss=total)


def used(*records: AccountingJob) -> dict[str, Any]:
    status = JobStatus(id=JobId(7), parts=tuple(part(str(record.id)) for record in records), accounted=records)
    return report_of(status)


def test_figures_are_those_of_seff() -> None:
    steps = (step(30.5, 1 << 30), step(0.5, None), step(89, 3 << 30))
    report = used(accounted("7", 60, "cpu=4,mem=8192M,node=1,gres/gpu=2,gres/gpu:h100=2", *steps))
    # CPU time of all steps, of the elapsed time on all CPUs; of memory the step with the highest peak.
    assert report["cpu_efficiency"] == 0.5
    assert (report["peak_memory"], report["memory_efficiency"]) == (3 << 30, 0.375)
    assert report["gpu_hours"] == round(2 * 60 / 3600, 4)


def test_gpu_hours_include_the_runs_before_a_requeue() -> None:
    earlier = accounted("7", 3600, "cpu=4,gres/gpu=8")
    report = used(accounted("7", 1800, "cpu=4,gres/gpu=8", step(3600, None), earlier_runs=(earlier,)))
    assert report["gpu_hours"] == 12
    assert report["cpu_efficiency"] == 0.5


def test_figures_of_an_array_are_sums_and_of_memory_the_element_that_came_closest_to_its_limit() -> None:
    report = used(
        accounted("7_0", 3600, "cpu=1,mem=1024M,gres/gpu=1", step(3600, 512 << 20)),
        accounted("7_1", 3600, "cpu=3,mem=1024M,gres/gpu=1", step(0, 256 << 20)),
    )
    assert (report["gpu_hours"], report["cpu_efficiency"]) == (2, 0.25)
    assert (report["peak_memory"], report["memory_efficiency"]) == (512 << 20, 0.5)
    assert [one["cpu_efficiency"] for one in report["parts"]] == [1, 0]


@pytest.mark.parametrize("records", [[], [accounted("7", 60, "cpu=4")], [accounted("7", 0, "", step(None, None))]])
def test_what_was_not_measured_is_null(records: list[AccountingJob]) -> None:
    report = used(*records)
    assert report["cpu_efficiency"] is report["memory_efficiency"] is report["peak_memory"] is None
    assert report["gpu_hours"] == (0 if records else None)
