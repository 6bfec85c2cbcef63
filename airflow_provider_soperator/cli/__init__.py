"""The command ``airflow soperator``."""
