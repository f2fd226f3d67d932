"""Buffer sets, with tensors and pools that only look as if they were a GPU's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

COUNT = 10


class OnGpu(torch.Tensor):
    """A tensor of the CPU's that says it is a GPU's."""

    is_cuda = True


@pytest.fixture
def x(monkeypatch):
    """An input, on a GPU with free memory."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return torch.randn(2).as_subclass(OnGpu)


@pytest.fixture
def buffer_sets(x):
    """Ten of them."""
    from runner.timing.preparation import BufferSets

    return BufferSets((x,), COUNT)


def test_the_first_set_has_the_inputs_as_they_are_and_its_own_pool(buffer_sets, x):
    first, there = buffer_sets.first(), x.data_ptr()
    assert (len(buffer_sets), len(first)) == (COUNT, 1)
    with buffer_sets.at(0) as pool, first.at(7) as alone:
        assert pool is alone
        assert x.data_ptr() == there
    with buffer_sets.at(7) as pool:
        assert pool is not alone
        assert x.data_ptr() != there


def test_where_the_outputs_of_all_sets_do_not_fit_the_first_is_taken(buffer_sets, monkeypatch):
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
    assert tried == [("graph_timestamps", COUNT), ("graph_timestamps", 1)]


def test_a_warm_time_is_of_one_set_whose_data_the_last_call_has_left(buffer_sets, monkeypatch):
    from runner.timing import cuda, instruments

    asked = []

    def build(name, call, settings, *, buffer_sets, warm):
        asked.append((len(buffer_sets), warm))
        return SimpleNamespace(samples=lambda count: [1.0] * count)

    monkeypatch.setattr(instruments, "build", build)
    assert cuda.warm_columns(None, None, buffer_sets, 10.0) == {"gpu_warm_us": 1.0}
    assert asked == [(1, True)]
