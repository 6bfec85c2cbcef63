"""Pipelines: jobs that wait for each other in Slurm, each a task in Airflow."""
