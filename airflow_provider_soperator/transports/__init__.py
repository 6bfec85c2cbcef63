"""Ways to reach a Slurm; one module each, and one protocol for all."""
