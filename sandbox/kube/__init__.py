"""A double of the Kubernetes API: an object store, and a server that real clients talk to."""
