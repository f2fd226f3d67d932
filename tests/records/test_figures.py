"""Numbers with units."""

from __future__ import annotations

import pytest

from runner.records.figures import figure


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.918e37, "", "1.918e+37"), (2.5e21, "", "2500 E"), (4.28e12, "", "4.28 T"), (12_345.0, "PB/s", "12345 PB/s")],
)
def test_a_number_larger_than_all_prefixes_is_short(value, unit, text):
    assert figure(value, unit) == text
