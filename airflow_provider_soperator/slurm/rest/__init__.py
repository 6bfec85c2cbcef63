"""Requests to Slurm for slurmrestd: HTTP calls, and the reading of their JSON into the same records.

Nothing is sent here: ``steps`` yields calls and is sent their answers by the transport.
"""

from airflow_provider_soperator.slurm.rest import accounting, cluster, jobs, nodes, reservations, submission
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, RestCall, Site, Steps, Unsupported, steps

__all__ = [
    "RestAnswer",
    "RestCall",
    "Site",
    "Steps",
    "Unsupported",
    "accounting",
    "cluster",
    "jobs",
    "nodes",
    "reservations",
    "steps",
    "submission",
]
