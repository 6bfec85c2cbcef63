"""Tasks of an executor on nodes, beside those of LocalExecutor and bare jobs."""
