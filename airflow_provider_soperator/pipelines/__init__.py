"""Pipelines: jobs that wait for each other in Slurm, and are tasks of their own in Airflow."""
