"""Transports to Slurm: one module each, and one protocol for all."""
