"""BufferSets of memory, with tensors and pools that only look as if they were a GPU's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

PLACES = 10


@pytest.fixture
def buffer_sets(monkeypatch):
    """Ten of them, for one input."""
    import torch

    from runner.timing import preparation

    class Input:
        is_cuda = True
        nbytes = 8

        def is_contiguous(self):
            return True

        def numel(self):
            return 2

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object, raising=False)
    monkeypatch.setattr(preparation, "_affordable", lambda inputs, count: count)
    monkeypatch.setattr(preparation, "_copy", lambda tensor, offset: Input())
    return preparation.BufferSets((Input(),), PLACES)


def test_the_first_place_has_the_inputs_as_they_are_and_its_own_pool(buffer_sets):
    first = buffer_sets.first()
    assert (len(buffer_sets), len(first)) == (PLACES, 1)
    with buffer_sets.at(0) as pool, first.at(7) as alone:
        assert pool is alone
    assert first._inputs is buffer_sets._inputs


def test_where_the_outputs_of_all_places_do_not_fit_the_first_is_taken(buffer_sets, monkeypatch):
    import torch

    from runner.timing import instruments
    from runner.timing.capture import CaptureError

    tried = []

    def build(name, call, settings, *, buffer_sets=None):
        tried.append((name, len(buffer_sets) if buffer_sets else None))
        if len(tried) == 1:
            raise CaptureError("memory") from torch.OutOfMemoryError("memory")
        return name

    monkeypatch.setattr(instruments, "build", build)
    monkeypatch.setattr(instruments, "no_timestamps", lambda: "")
    settings = SimpleNamespace(instrument="auto")
    assert instruments.choose(None, settings, buffer_sets) == ("graph_timestamps", "")
    assert tried == [("graph_timestamps", PLACES), ("graph_timestamps", 1)]


def test_a_warm_time_is_of_one_place_whose_data_the_last_call_has_left(buffer_sets, monkeypatch):
    from runner.timing import cuda, instruments

    asked = []

    def build(name, call, settings, *, buffer_sets, warm):
        asked.append((len(buffer_sets), warm))
        return SimpleNamespace(samples=lambda count: [1.0] * count)

    monkeypatch.setattr(instruments, "build", build)
    assert cuda._warm(None, None, buffer_sets, 10.0) == {"gpu_warm_us": 1.0}
    assert asked == [(1, True)]
