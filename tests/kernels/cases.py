"""Cases of tests that have many."""

from __future__ import annotations

import pytest


def long(*values):
    """Return a case of ``make long``: it takes seconds, and shows what others of its test show."""
    return pytest.param(*values, marks=pytest.mark.long)


def ends(*cases):
    """Return ``cases``, tuples or single values, of which all but the first and the last are long."""
    between = [long(*case) if isinstance(case, tuple) else long(case) for case in cases[1:-1]]
    return [cases[0], *between, cases[-1]]
