"""What waits in the triggerer in the place of a worker."""
