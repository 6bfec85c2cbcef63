"""Python functions that run as Slurm jobs."""
