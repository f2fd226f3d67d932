"""Which nodes of a captured graph belong to the call, and which are outside of its timestamps."""

from __future__ import annotations

from runner.timing.capture import HOST, KERNEL, MEMSET, classify

EMPTY, EVENT_RECORD = 5, 7  # nodes that do nothing
PREPARING, FIRST, LAST = 1, 2, 9  # as each graph below names them
STAMP, FLUSH, GELU = 70, 71, 72  # functions


def contents(call, *edges):
    """Contents of a graph of ``call``, node → (type, function), with ``edges`` beside that of its preparation."""
    nodes = {PREPARING: (KERNEL, FLUSH), FIRST: (KERNEL, STAMP), LAST: (KERNEL, STAMP)} | call
    return classify(
        {node: kind if isinstance(kind, list) else [kind] for node, kind in nodes.items()}, [(1, 2), *edges]
    )


def test_a_call_is_what_lies_between_the_timestamps():
    found = contents({3: (MEMSET, 0), 4: (KERNEL, GELU), 5: (EMPTY, 0)}, (2, 3), (3, 4), (4, 5), (5, 9))
    assert (found.work, found.outside, found.hosts) == (2, 0, 0)
    assert found.kinds == {(MEMSET, 0): 1, (KERNEL, GELU): 1, (EMPTY, 0): 1}


def test_a_call_that_launches_nothing_holds_nothing():
    found = contents({}, (2, 9))
    assert (found.work, found.outside) == (0, 0)


def test_a_branch_that_does_not_wait_for_the_first_timestamp_is_outside():
    assert contents({3: (KERNEL, GELU)}, (1, 3), (2, 9), (3, 9)).outside == 1


def test_a_branch_that_the_last_timestamp_does_not_wait_for_is_outside():
    assert contents({3: (MEMSET, 0)}, (2, 3), (2, 9)).outside == 1
    assert contents({3: (KERNEL, GELU)}, (2, 3), (2, 9)).outside


def test_events_that_nobody_waits_for_do_no_work():
    found = contents({3: (KERNEL, GELU), 4: (EVENT_RECORD, 0), 5: (EMPTY, 0)}, (2, 3), (3, 9), (3, 4), (4, 5))
    assert (found.work, found.outside) == (1, 0)


def test_host_functions_are_counted():
    assert contents({3: (HOST, 0)}, (2, 3), (3, 9)).hosts == 1


def test_the_nodes_of_a_child_graph_are_part_of_the_call():
    found = contents({3: [(KERNEL, GELU), (MEMSET, 0), (HOST, 0)]}, (2, 3), (3, 9))
    assert (found.work, found.outside, found.hosts) == (2, 0, 1)
