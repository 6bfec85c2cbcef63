"""Terraform for a recipe such as Soperator's: plans, and applies that are done once, though processes die meanwhile.

Drives the binary ``terraform`` (or OpenTofu's ``tofu``). Knows nothing of Airflow.
"""
