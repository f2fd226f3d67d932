"""What no number of samples shows: how far an instrument is off from one process, or one capture, to the next."""

from __future__ import annotations

from runner.timing.statistics import NO_FLOOR, Floor

# Standard deviation between 16 processes on an H200, rounded up: what one process cannot see of its own error.
FLOORS = {
    "graph_timestamps": Floor(us=0.010, share=0.001),
    "stream_timestamps": Floor(us=0.4, share=0.001),  # reads 0.2 us more than graphs at 1 us, and 0.7 from 30 us on
    # Reads 3.2 to 4.1 us more than a kernel lasts, and nothing is taken off.
    "cuda_events": Floor(us=2.2, share=0.0015),
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": NO_FLOOR,
}

# Of each side of a ratio, when both were sampled in the same rounds: what moves both alike is gone.
PAIR_FLOORS = {
    "graph_timestamps": Floor(us=0.005, share=0.0003),
    "stream_timestamps": Floor(us=0.005, share=0.0003),
    "cuda_events": Floor(us=0.02, share=0.0005),
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": NO_FLOOR,
}


def pair_floors(first: str, second: str) -> tuple[Floor, Floor]:
    """Of both sides of a ratio; what moves two instruments is not the same, so there nothing is gone."""
    floors = PAIR_FLOORS if first == second else FLOORS
    return floors[first], floors[second]


def shared_us(first: str, second: str) -> float:
    """By how much, at most, one instrument may have read both sides of a ratio too long; 0 of two instruments."""
    return FLOORS[first].widen(0.0, 0.0) if first == second else 0.0
