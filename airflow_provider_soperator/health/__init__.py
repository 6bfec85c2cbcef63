"""What is wrong with a cluster's nodes, from what Slurm, Kubernetes and Prometheus say of them: pure, without I/O."""
