"""Compare the profilers with the timer."""
