"""Requests to Slurm, one small value for each; those that submit jobs once are in ``submission``."""

# ruff: noqa: F403

from airflow_provider_soperator.slurm.requests.accounting import *
from airflow_provider_soperator.slurm.requests.cluster import *
from airflow_provider_soperator.slurm.requests.commands import *
from airflow_provider_soperator.slurm.requests.jobs import *
from airflow_provider_soperator.slurm.requests.nodes import *
from airflow_provider_soperator.slurm.requests.reservations import *
