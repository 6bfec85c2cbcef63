"""The demonstration: an example DAG in a real Airflow, on a real Slurm, watched from the terminal."""
