"""What the objects of a Soperator cluster say, read from plain dicts: no Airflow, no I/O."""
