"""Shell scripts of chained sbatch calls: read into stages of a pipeline, and written from jobs."""
