"""Whether the profilers agree with the timer."""
