"""Run a Soperator cluster (Slurm on Kubernetes) from Apache Airflow."""

__version__ = "0.1.0"
