"""What users of a Slurm work with: a client for event loops with its watcher, and the same for threads."""
