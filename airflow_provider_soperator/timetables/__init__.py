"""When DAGs run."""
