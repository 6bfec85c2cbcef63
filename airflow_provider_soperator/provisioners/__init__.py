"""Ways to have a cluster made: what each does to plan, carry out and destroy what a description says."""
