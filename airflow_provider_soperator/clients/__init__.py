"""What users of a Slurm work with: a client for threads, one for event loops, and the watcher that each has."""
