"""Graphs that a driver made up would tell of: which nodes are a call's, and which are outside of its timestamps."""

from __future__ import annotations

import pytest

from runner.timing import capture
from runner.timing.capture import HOST, KERNEL, MEMSET

EMPTY = 5  # a node that does nothing
PREPARING, FIRST, LAST = 1, 2, 9  # as each graph below names them
STAMP, FLUSH, GELU = 70, 71, 72  # functions


@pytest.fixture
def contents(monkeypatch):
    """What is said of a graph of ``call``, node → (type, function), with ``edges`` beside that of its preparation."""

    def found(call, *edges):
        nodes = {PREPARING: (KERNEL, FLUSH), FIRST: (KERNEL, STAMP), LAST: (KERNEL, STAMP)} | call
        monkeypatch.setattr(capture, "_nodes", lambda _: list(nodes))
        monkeypatch.setattr(capture, "_edges", lambda _: [(PREPARING, FIRST), *edges])
        monkeypatch.setattr(capture, "_what", nodes.__getitem__)
        return capture.contents(0)

    return found


def test_a_call_is_what_lies_between_the_timestamps(contents):
    found = contents({3: (MEMSET, 0), 4: (KERNEL, GELU), 5: (EMPTY, 0)}, (2, 3), (3, 4), (4, 5), (5, 9))
    assert (found.work, found.outside, found.hosts) == (2, 0, 0)
    assert found.kinds == {(MEMSET, 0): 1, (KERNEL, GELU): 1, (EMPTY, 0): 1}


def test_a_call_that_launches_nothing_holds_nothing(contents):
    found = contents({}, (2, 9))
    assert (found.work, found.outside) == (0, 0)


def test_a_branch_that_does_not_wait_for_the_first_stamp_is_outside(contents):
    assert contents({3: (KERNEL, GELU)}, (1, 3), (2, 9), (3, 9)).outside == 1


def test_a_branch_that_the_last_stamp_does_not_wait_for_is_outside(contents):
    assert contents({3: (MEMSET, 0)}, (2, 3), (2, 9)).outside == 1
    assert contents({3: (KERNEL, GELU)}, (2, 3), (2, 9)).outside


def test_host_functions_are_counted(contents):
    assert contents({3: (HOST, 0)}, (2, 3), (3, 9)).hosts == 1
