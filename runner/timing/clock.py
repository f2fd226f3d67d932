"""The host's clocks, bound when a worker starts: a case that replaces ``time``'s functions does not change times."""

from time import perf_counter as perf_counter
from time import perf_counter_ns as perf_counter_ns
from time import sleep as sleep
