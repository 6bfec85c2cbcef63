"""Waiting for what happens on a cluster."""
