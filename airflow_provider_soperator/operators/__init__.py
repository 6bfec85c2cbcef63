"""Slurm's work as Airflow tasks."""
