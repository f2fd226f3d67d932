"""How long a call takes and how sure that is: instruments, calibration, statistics. Knows torch alone."""
