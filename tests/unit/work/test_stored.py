"""Work and watches as they travel: each is read back as it was written."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.health.assessment import HealthQuery
from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections, HealthSources
from airflow_provider_soperator.nebius.capacity_blocks import BlockAwaited
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.soperator.readiness import Wanted
from airflow_provider_soperator.soperator.resize import Resize
from airflow_provider_soperator.work.backups import JailBackup
from airflow_provider_soperator.work.checks import CheckRun, CheckWatch
from airflow_provider_soperator.work.clusters import ClusterStart, ClusterWatch
from airflow_provider_soperator.work.machines import MachineReplacement
from airflow_provider_soperator.work.nodes import NodeChange, NodeStateWatch
from airflow_provider_soperator.work.nodesets import NodeSetResize
from airflow_provider_soperator.work.protocols import Stored, Watch, Work
from airflow_provider_soperator.work.targets import TargetScaling
from airflow_provider_soperator.work.watches import BlockWatch, HealthWatch, JobWatch, QueueWatch

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
SPAN: dict[str, Any] = {"since": NOON, "deadline": NOON + timedelta(hours=1), "poll_interval": 2.0}
WHERE = ClusterConnections("kubernetes_default", "soperator", None, "soperator_default")
SLURM = "soperator_default"

VALUES = [
    BlockWatch(
        nebius_conn_id="nebius_default",
        block="capacityblockgroup-e00example",
        awaited=BlockAwaited(min_free_gpus=8, stable_for=timedelta(hours=2)),
    ),
    CheckWatch(
        where=WHERE,
        check="gpu-checks",
        since=NOON,
        fail_fast=True,
    ),
    CheckRun(
        where=WHERE,
        check="gpu-checks",
        keys=("a", "b"),
        task="dag/run/task/-1",
        if_running="join",
        figures={"busbw": "([0-9.]+) GB/s"},
        **SPAN,
    ),
    ClusterStart(
        kubernetes_conn_id=None,
        namespace="soperator",
        cluster="soperator",
        wanted=Wanted("4.1.7", {"worker": 2}, {"worker": 8}),
        slurm_conn_id=SLURM,
        smoke_job={"command": "true"},
        keys={"worker": ("a", "b")},
        submitted_since=NOON,
        **SPAN,
    ),
    ClusterWatch(where=WHERE, nodesets=("worker",)),
    HealthWatch(
        slurm_conn_id=SLURM,
        watched=HealthQuery(nodes=("worker-0",), kinds=("pod",), ignore_own_drains=False),
        witnesses=HealthSources(
            prometheus_conn_id="p", series={"cluster": "a"}, node_labels=("instance",), checks=("nccl",)
        ),
    ),
    JailBackup(
        kubernetes_conn_id="kubernetes_default",
        namespace="soperator",
        schedule="soperator-jail",
        max_backup_age=timedelta(hours=4),
        keys=("a", "b"),
        task="dag/run/task/-1",
        **SPAN,
    ),
    JobWatch(slurm_conn_id=SLURM, job_id="7_[1-3]", states=("RUNNING",)),
    QueueWatch(
        slurm_conn_id=SLURM,
        jobs=QueueFilter(states=("PENDING",), waited=timedelta(minutes=5)),
        max_jobs=0,
        min_duration=timedelta(minutes=1),
    ),
    MachineReplacement(slurm_conn_id=SLURM, nodes=("worker-0",), owner="nights", max_parallel="25%", **SPAN),
    NodeChange(slurm_conn_id=SLURM, action="up", count=2, features=("gpu",), owner="nights", **SPAN),
    NodeStateWatch(slurm_conn_id=SLURM, state="usable", nodes=("worker-0",), match=1),
    NodeSetResize(where=WHERE, resize=Resize(nodeset="worker", replicas=2, owner="nights"), **SPAN),
    TargetScaling(
        target=SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
        units=2,
        mode="asap",
        block=None,
        nebius_conn_id="nebius_default",
        key="dag/run/task/-1",
        **SPAN,
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_is_read_back_as_it_was_written(value: Stored) -> None:
    kind: type[Stored] = Watch if isinstance(value, Watch) else Work
    assert kind.read(json.loads(json.dumps(value.write()))) == value


def test_a_queue_that_was_read_back_has_lasted_for_no_time() -> None:
    watch = next(value for value in VALUES if isinstance(value, QueueWatch))
    again: Any = Watch.read(watch.write())
    assert again._episode.since is None


def test_none_is_missing() -> None:
    ours = {
        kind
        for base in (Watch, Work)
        for kind in base.__subclasses__()
        if kind.__module__.startswith("airflow_provider_soperator.")
    }
    assert ours == {type(value) for value in VALUES}
