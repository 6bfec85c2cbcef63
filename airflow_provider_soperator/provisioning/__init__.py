"""What a cluster is to be, and how that is said to those who make one. Pure: no Airflow, no I/O."""
