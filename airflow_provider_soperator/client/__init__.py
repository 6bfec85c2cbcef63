"""One cluster's client: one poller, one batcher and one connection for all tasks of a process that use it."""
