"""Capacity: the GPUs of a reserved block, shared among targets by schedules, and moved by shifts."""
