"""Requests to Slurm, one small value for each."""

from airflow_provider_soperator.slurm.requests.accounting import Accounting, ListShares, ListUsage, ShowRights
from airflow_provider_soperator.slurm.requests.cluster import (
    MintToken,
    Ping,
    ReadClock,
    ShowConfig,
    ShowTopology,
    WhoAmI,
)
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.requests.jobs import (
    CancelJobs,
    HoldJobs,
    JobDetail,
    ListJobs,
    ReleaseJobs,
    RequeueJobs,
    TopJobs,
    UpdateJob,
    batches,
)
from airflow_provider_soperator.slurm.requests.nodes import (
    CreateReservation,
    DeleteReservation,
    Drain,
    ListNodes,
    ListPartitions,
    ListReservations,
    NodeOrder,
    PowerDown,
    PowerDownMode,
    PowerUp,
    Undrain,
    UpdateReservation,
)
