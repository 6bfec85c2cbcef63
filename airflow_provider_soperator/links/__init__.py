"""Links from a task to pages about its job."""
