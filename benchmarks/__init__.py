"""Measurements, each against something: ``python -m benchmarks`` prints one table."""
