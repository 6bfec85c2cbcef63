"""Terraform for a recipe such as Soperator's: what it plans, what it does, and that it is done once whoever dies.

Drives the binary ``terraform`` (or OpenTofu's ``tofu``). Knows nothing of Airflow.
"""
