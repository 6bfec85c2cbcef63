"""Records: what they say of themselves beyond their fields."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, UserRights
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus, count_gpus, sentence
from airflow_provider_soperator.slurm.states import JobState


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ("", 0),
        ("gpu:8", 8),
        ("gpu:0", 0),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:h100:4(IDX:0-3,5),gpu:a100:1(IDX:6),shard:2", 5),
        ("cpu=16,mem=62.50G,gres/gpu=8,gres/gpu:h100=8", 8),
        ("gres/gpu:h100=3", 3),
        ("gres/gpumem=80G,gres/gpuutil=5", 0),
        ("craynetwork:4", 0),
    ],
)
def test_gpus_are_counted_once(resources: str, gpus: int) -> None:
    assert count_gpus(resources) == gpus


@pytest.mark.parametrize(
    ("version", "release"), [("24.11.5", (24, 11)), ("26.05.3-nebius-2", (26, 5)), ("26.05.0-0rc1", (26, 5))]
)
def test_the_release_of_a_version(version: str, release: tuple[int, int]) -> None:
    assert ClusterConfig(version=version).release == release


@pytest.mark.parametrize(
    ("tracked", "counts"),
    [
        ("cpu,mem,energy,node,billing,fs/disk,vmem,pages", False),
        ("CPU,Mem,Node,VMem,Gres/gpu", True),
        ("cpu,gres/gpu:h100", True),
        ("cpu,gres/gpumem", False),
        # What slurmrestd did not show before v0.0.45.
        (None, True),
    ],
)
def test_whether_gpus_are_counted(tracked: str | None, counts: bool) -> None:
    settings = {} if tracked is None else {"AccountingStorageTRES": tracked}
    assert ClusterConfig(version="25.11.3", settings=settings).counts_gpus is counts


def test_the_rate_limit() -> None:
    assert ClusterConfig(version="25.11.3").rate_limit is None
    parameters = ("cloud_dns", "rl_enable", "rl_refill_rate=20", "rl_bucket_size=60")
    limit = ClusterConfig(version="25.11.3", slurmctld_parameters=parameters).rate_limit
    assert limit is not None
    assert (limit.refill, limit.period) == (20, timedelta(seconds=1))


def test_holds_by_hand_and_by_state() -> None:
    assert Job(id=JobId(1), state=JobState.parse("PENDING"), reason="JobHeldUser").is_held
    assert Job(id=JobId(1), state=JobState.parse("REQUEUE_HOLD")).is_held
    assert not Job(id=JobId(1), state=JobState.parse("PENDING"), reason="Resources").is_held


def test_a_job_waits_since_it_may_start_and_not_since_it_was_submitted() -> None:
    now, hour = datetime(2026, 11, 22, 12, tzinfo=timezone.utc), timedelta(hours=1)
    job = Job(id=JobId(1), state=JobState.parse("PENDING"), submitted=now - 9 * hour)
    assert (job.waited(now), replace(job, submitted=None).waited(now)) == (9 * hour, timedelta(0))
    freed = replace(job, eligible=now - 2 * hour, started=now + hour)
    assert freed.waited(now) == 2 * hour
    assert replace(freed, state=JobState.parse("RUNNING"), started=now - hour).waited(now) == hour
    # Its time to begin may be ahead, and so may the cluster's clock.
    assert replace(job, eligible=now + hour).waited(now) == timedelta(0)


def test_who_may_change_nodes() -> None:
    assert UserRights(user="root").may_change_nodes
    assert UserRights(user="ada", admin_level="Administrator").may_change_nodes
    assert not UserRights(user="bob", admin_level="Operator").may_change_nodes


def test_a_job_that_has_ended_is_told_of_though_others_of_its_array_cannot_be_asked_for() -> None:
    ended = Job(id=JobId.parse("7_1"), state=JobState.parse("TIMEOUT"), name="train", user="alice")
    runs = Job(id=JobId.parse("7_1"), state=JobState.parse("RUNNING"), name="train", user="alice")
    said = [sentence(JobStatus(id=part.id, parts=(part,), trouble="sacct: away")) for part in (ended, runs)]
    assert said[0].startswith("is TIMEOUT")
    assert said[1] == "cannot be polled at present, which does not affect it: sacct: away"


def test_a_job_that_was_resized_was_not_requeued() -> None:
    runs = [AccountingJob(id=JobId(7), state=JobState.parse(state)) for state in ("RESIZING", "NODE_FAIL", "COMPLETED")]
    assert replace(runs[-1], earlier_runs=tuple(runs[:-1])).as_job().restarts == 1
