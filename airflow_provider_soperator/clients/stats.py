"""What is asked for a snapshot of a cluster."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone

from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.slurm.accounts import Share
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes, ListShares
from airflow_provider_soperator.slurm.stats import SlurmStats, snapshot
from airflow_provider_soperator.transports.errors import NotSupported


def take(top: int) -> Steps[SlurmStats]:
    """Three questions, whatever the number of jobs, nodes and users. Without accounting nobody has shares."""
    jobs = yield ListJobs()
    nodes = yield ListNodes()
    shares: tuple[Share, ...] = ()
    with contextlib.suppress(AccountingDisabled, NotSupported):
        shares = yield ListShares()
    return snapshot(jobs, nodes, shares or None, datetime.now(timezone.utc), top)
