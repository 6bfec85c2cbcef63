"""Half of Slurm's nodes handed to an inference service at a moment, under a queue that never runs dry."""
