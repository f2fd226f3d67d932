"""Task files: a workload in one file of the user's."""
