"""Timestamps in graphs, on a GPU that is made up: its graphs write a number to memory when they are replayed."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")


class Graph:
    """Writes ``value`` to ``memory`` whenever it is replayed."""

    def replay(self):
        self.last.append(self)
        self.memory.fill_(self.value)


@pytest.fixture
def made(monkeypatch):
    """An instrument whose graphs write one number each, to a memory of each or to one of all; and its graphs."""
    from runner.timing import timestamps

    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(timestamps, "capture_stream", lambda: stream)
    monkeypatch.setattr(timestamps, "alias", lambda tensor: tensor)

    def instrument(values, *, shared=False, dtype=torch.float32):
        one, last, graphs = torch.zeros(4, dtype=dtype), [], []

        def read():
            return [(5e3, 1e4)] * len(values)

        @contextmanager
        def capturing(graph, pool):
            graph.memory, graph.value = one if shared else torch.zeros(4, dtype=dtype), values[len(graphs)]
            graph.last = last
            graphs.append(graph)
            yield

        nothing = SimpleNamespace(begin=lambda pair: None, end=lambda pair: None, read=read)
        monkeypatch.setattr(timestamps, "timestamp_buffer", lambda pairs: nothing)
        monkeypatch.setattr(timestamps, "capturing", capturing)
        found = timestamps.GraphTimestamps(
            lambda: (graphs[-1].memory if graphs else one,),
            lambda: None,
            captures=len(values),
            constant_us=0.0,
        )
        return found, graphs, last

    return instrument


@pytest.mark.parametrize(
    ("us", "captures", "buffer_sets", "expected"),
    [(90.0, 20, 10, 20), (110.0, 20, 10, 10), (110.0, 20, 1, 5), (110.0, 8, 10, 8), (110.0, 1, 10, 1)],
)
def test_a_long_call_has_a_capture_for_each_buffer_set_and_five_at_least(us, captures, buffer_sets, expected):
    from runner.timing.timestamps import captures_needed

    assert captures_needed(us, captures, buffer_sets) == expected


def judged(instrument):
    return [complex(outputs[0][0]).real for outputs in instrument.outputs()]


@pytest.mark.parametrize("shared", [False, True])
def test_what_others_have_written_since_is_not_taken_for_what_a_replay_gives(made, shared):
    instrument, graphs, _ = made([5.0, 5.0, 5.0], shared=shared)
    assert instrument.samples(3) == [5.0] * 3
    for graph in graphs:
        graph.memory.fill_(-7.0)  # an intermediate result of another instrument's graph, in the same pool of memory
    assert judged(instrument) == [5.0] * 4  # the last graph, then each


def test_a_graph_that_gives_something_else_is_judged_too(made):
    instrument, _, _ = made([5.0, 5.0, 6.0])
    instrument.samples(3)
    assert set(judged(instrument)) == {5.0, 6.0}


@pytest.mark.parametrize(
    ("dtype", "overwritten"),
    [(torch.float32, -2.25), (torch.complex64, -2.25), (torch.int64, -6.0), (torch.float8_e4m3fn, -0.8125)],
)
def test_a_graph_that_writes_nothing_leaves_overwritten_outputs(made, dtype, overwritten):
    instrument, graphs, last = made([5.0, 5.0, 5.0], dtype=dtype)
    instrument.samples(3)
    idle = next(graph for graph in graphs if graph is not last[-1])
    idle.memory.fill_(5.0)  # right, and by another call
    idle.replay = lambda: None
    assert sorted(judged(instrument)) == [overwritten, 5.0, 5.0, 5.0]


def test_a_graph_that_was_not_timed_is_not_replayed_for_its_outputs(made):
    """A call of a second has five samples and twenty graphs."""
    instrument, _, last = made([5.0, 6.0, 7.0])
    instrument.samples(1)
    timed = last[-1]
    last.clear()
    assert judged(instrument) == [timed.value] * 2
    assert set(last) == {timed}
