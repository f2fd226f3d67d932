"""The table behind benchmarks/buffer_sets.py, on times made up here."""

from __future__ import annotations

from benchmarks.timer.buffer_sets import PLACES, Timed, report


def test_a_line_has_the_spread_at_each_number_of_places():
    found = [{"gelu": [Timed(us, 0.1) for us in times]} for times in ((9.0, 9.9, 10.0), (11.0, 10.1, 10.0))]
    assert len(PLACES) == 3
    line = report(found).splitlines()[-1]
    assert line == "| gelu | 10.000 | 1414.2 (22.22 %) | 141.4 (2.02 %) | 0.0 (0.00 %) | 100 |"
