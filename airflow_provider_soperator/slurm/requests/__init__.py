"""Everything that Slurm can be asked or told, one small value for each."""

from airflow_provider_soperator.slurm.requests.accounting import Accounting, ShowRights
from airflow_provider_soperator.slurm.requests.base import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.requests.cluster import (
    MintToken,
    Ping,
    SchedulerDiagnostics,
    ShowConfig,
    ShowTopology,
    WhoAmI,
)
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
    CommentNodes,
    Drain,
    ListMachines,
    ListNodes,
    ListPartitions,
    NodeDetail,
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
from airflow_provider_soperator.slurm.requests.shares import ListShares

__all__ = [
    "Accounting",
    "CancelJobs",
    "Command",
    "CommandOutput",
    "CommentNodes",
    "CreateReservation",
    "DeleteReservation",
    "Drain",
    "HoldJobs",
    "JobDetail",
    "ListJobs",
    "ListMachines",
    "ListNodes",
    "ListPartitions",
    "ListReservations",
    "ListShares",
    "MintToken",
    "NodeDetail",
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
