"""Every question to Slurm as slurmrestd takes it: HTTP calls, and how their JSON is read into the very same records.

Nothing is sent here: ``steps`` yields calls and is given their answers, so one code serves threads and event loops.
"""

from airflow_provider_soperator.slurm.rest import accounting, cluster, jobs, nodes, once, reservations, shares
from airflow_provider_soperator.slurm.rest.calls import Answer, Call, Site, Steps, Unsupported, steps

__all__ = [
    "Answer",
    "Call",
    "Site",
    "Steps",
    "Unsupported",
    "accounting",
    "cluster",
    "jobs",
    "nodes",
    "once",
    "reservations",
    "shares",
    "steps",
]
