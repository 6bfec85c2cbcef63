"""Requests to Slurm, one small value for each."""

from airflow_provider_soperator.slurm.requests.accounting import Accounting, ListShares, ShowRights
from airflow_provider_soperator.slurm.requests.cluster import (
    MintToken,
    Ping,
    SchedulerDiagnostics,
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
    Submit,
    TopJobs,
    UpdateJob,
    batches,
)
from airflow_provider_soperator.slurm.requests.nodes import (
    Drain,
    ListNodes,
    ListPartitions,
    NodeOrder,
    PowerDown,
    PowerDownMode,
    PowerUp,
    ResumeNodes,
    Undrain,
)
from airflow_provider_soperator.slurm.requests.reservations import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    UpdateReservation,
)

__all__ = [
    "Accounting",
    "CancelJobs",
    "Command",
    "CommandOutput",
    "CreateReservation",
    "DeleteReservation",
    "Drain",
    "HoldJobs",
    "JobDetail",
    "ListJobs",
    "ListNodes",
    "ListPartitions",
    "ListReservations",
    "ListShares",
    "MintToken",
    "NodeOrder",
    "Ping",
    "PowerDown",
    "PowerDownMode",
    "PowerUp",
    "ReleaseJobs",
    "Request",
    "RequeueJobs",
    "ResumeNodes",
    "SchedulerDiagnostics",
    "ShowConfig",
    "ShowRights",
    "ShowTopology",
    "Submit",
    "TopJobs",
    "Undrain",
    "UpdateJob",
    "UpdateReservation",
    "WhoAmI",
    "batches",
]
