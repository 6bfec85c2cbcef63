"""Requests to Slurm for slurmrestd: HTTP calls, and the reading of their JSON into the same records.

Nothing is sent here: ``calls.steps`` yields calls and is sent their answers by the transport.
"""

# Each module registers its functions with ``calls``.
from airflow_provider_soperator.slurm.rest import accounting, cluster, jobs, submission
