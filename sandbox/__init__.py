"""A whole Soperator on one machine: a real Slurm, and doubles of the Kubernetes and Nebius APIs around it."""

__version__ = "0.1.0"
