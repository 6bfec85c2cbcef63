"""Many jobs waited for at once by a whole Airflow: this provider's two ways against two that people write by hand."""
