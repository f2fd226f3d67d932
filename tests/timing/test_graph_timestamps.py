"""Timestamps in graphs, with graphs that only look as if a GPU replayed them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")


class Graph:
    """Writes ``value`` to ``memory`` whenever it is replayed."""

    def __init__(self, memory, value):
        self.memory, self.value = memory, value

    def replay(self):
        self.memory.fill_(self.value)


class There:
    """Where a graph writes."""

    data_ptr = 1

    def __init__(self, memory):
        self.memory = memory

    def tensor(self):
        return self.memory


@pytest.fixture
def made(monkeypatch):
    """Graphs that write one number each, to a memory of each or to one of all."""
    from runner.timing.timestamps import GraphTimestamps

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def graphs(values, *, shared=False):
        one = torch.zeros(4)
        memories = [one if shared else torch.zeros(4) for _ in values]
        instrument = object.__new__(GraphTimestamps)
        instrument._graphs = [Graph(memory, value) for memory, value in zip(memories, values, strict=True)]
        instrument._outputs = [[There(memory)] for memory in memories]
        instrument._last, instrument._lasting, instrument._timed = 1, set(), set(range(len(values)))
        return instrument, memories

    return graphs


@pytest.mark.parametrize(
    ("us", "captures", "buffer_sets", "expected"),
    [(90.0, 20, 10, 20), (110.0, 20, 10, 10), (110.0, 20, 1, 5), (110.0, 8, 10, 8), (110.0, 1, 10, 1)],
)
def test_a_long_call_has_a_capture_for_each_place_and_five_at_least(monkeypatch, us, captures, buffer_sets, expected):
    from runner.timing.timestamps import GraphTimestamps

    replayed = []
    monkeypatch.setattr(GraphTimestamps, "_replay", lambda self, order: replayed.extend(order))
    instrument = object.__new__(GraphTimestamps)
    instrument._slots = SimpleNamespace(read=lambda: [(1e3 * us, 1.0)] * 20 if replayed else [])
    instrument._places = range(buffer_sets)
    assert instrument._worthwhile(captures) == expected


def judged(instrument):
    return [float(outputs[0][0]) for outputs in instrument.outputs()]


@pytest.mark.parametrize("shared", [False, True])
def test_what_others_have_written_since_is_not_taken_for_what_a_replay_gives(made, shared):
    instrument, memories = made([5.0, 5.0, 5.0], shared=shared)
    memories[1].fill_(-7.0)  # an intermediate result of another instrument's graph, in the same pool of memory
    assert judged(instrument) == [5.0]


def test_a_graph_that_gives_something_else_is_judged_too(made):
    assert judged(made([5.0, 5.0, 6.0])[0]) == [5.0, 6.0]


def test_a_graph_that_writes_nothing_leaves_what_was_spoilt(made):
    instrument, memories = made([5.0, 5.0, 5.0])
    memories[2].fill_(5.0)  # right, and by another call
    instrument._graphs[2].replay = lambda: None
    assert judged(instrument) == [5.0, -2.25]


def test_a_graph_that_was_not_timed_is_not_replayed_for_its_outputs(made):
    """A call of a second has five samples and twenty graphs."""
    instrument, _ = made([5.0, 5.0, 6.0])
    instrument._timed = {1}
    assert judged(instrument) == [5.0]
