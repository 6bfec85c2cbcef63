"""Terraform for a recipe such as Soperator's: plans, and applies that run exactly once even if processes die.

Runs the binary ``terraform`` (or OpenTofu's ``tofu``). No Airflow.
"""
