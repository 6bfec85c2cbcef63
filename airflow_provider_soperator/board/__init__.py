"""What operators see of a cluster at a glance: jobs and their tasks, nodes, health and what is left over."""
