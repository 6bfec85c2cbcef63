"""Every question to Slurm as slurmrestd takes it: HTTP calls, and how their JSON is read into the very same records.

Nothing is sent here: ``steps`` yields calls and is given their answers, and the transport sends them.
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
