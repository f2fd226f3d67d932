"""A GPU under load meets its power limit within a second; one that rests half of the time does not."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_US = 100.0  # calls of which a series may meet that limit


def rest(last_us: float, busy_s: float, again: Callable[[], object]) -> None:
    """As long as it was busy, if calls take ``last_us`` that is long; and once ``again``: after a pause it is slow."""
    if last_us > LONG_US:
        time.sleep(busy_s)
        again()
