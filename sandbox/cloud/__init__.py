"""The rented world around the Slurm: the capacity block, its machines, and the two APIs that sell them."""
