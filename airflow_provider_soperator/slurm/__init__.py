"""Slurm in plain values: no Airflow, no I/O, so that everything else can be built on it."""
