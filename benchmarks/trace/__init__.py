"""A month of jobs and requests on one block, under several ways to divide it."""
