"""A double of Prometheus: a few series of the present moment, and as much of its query language as selects them."""
