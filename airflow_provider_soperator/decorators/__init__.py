"""Functions of DAG files as tasks on a cluster."""
