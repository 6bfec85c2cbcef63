"""Active checks, CronJobs and Jobs as the API has them, with what a test does not care about filled in."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.soperator.active_checks import CheckSeen, RunSeen

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=timezone.utc)


def ago(**past: float) -> str:
    return (NOW - timedelta(**past)).isoformat().replace("+00:00", "Z")


def active_check(name: str = "gpu-checks", *, kind: str = "slurmJob", **status: Any) -> CheckSeen:
    """One with a status of its last run, in Slurm or in Kubernetes."""
    where = "slurmJobsStatus" if kind == "slurmJob" else "k8sJobsStatus"
    spec = {"name": name, "checkType": kind, "slurmClusterRefName": "soperator", "suspend": True}
    return CheckSeen.read({"metadata": {"name": name}, "spec": spec, "status": {where: status} if status else {}})


def job(
    name: str = "run-1",
    *,
    check: str = "gpu-checks",
    end: str = "",
    began: str = "",
    ended: str = "",
    message: str = "",
    **annotations: str,
) -> RunSeen:
    """A run; of annotations, underscores are dashes."""
    conditions = [
        {"type": "Suspended", "status": "False", "lastTransitionTime": ago(hours=2)},
        {"type": end, "status": "True", "reason": "R", "message": message, "lastTransitionTime": ended or ago(hours=1)},
    ]
    return RunSeen.read(
        {
            "metadata": {
                "name": name,
                "uid": f"uid of {name}",
                "creationTimestamp": began or ago(hours=2),
                "annotations": {key.replace("_", "-"): value for key, value in annotations.items()},
                "ownerReferences": [{"kind": "CronJob", "name": check}],
            },
            "status": {"conditions": conditions if end else conditions[:1]},
        }
    )
