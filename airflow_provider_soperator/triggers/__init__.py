"""Triggers, which wait in the triggerer in place of an Airflow worker."""
