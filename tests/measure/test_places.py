"""Places of memory, with tensors and pools that only look as if they were a GPU's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

PLACES = 10


@pytest.fixture
def places(monkeypatch):
    """Ten of them, for one input."""
    import torch

    from runner.measure import places

    class Input:
        is_cuda = True
        nbytes = 8

        def is_contiguous(self):
            return True

        def numel(self):
            return 2

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object, raising=False)
    monkeypatch.setattr(places, "_affordable", lambda inputs, count: count)
    monkeypatch.setattr(places, "_copy", lambda tensor, offset: Input())
    return places.Places((Input(),), PLACES)


def test_the_first_place_has_the_inputs_as_they_are_and_its_own_pool(places):
    first = places.first()
    assert (len(places), len(first)) == (PLACES, 1)
    with places.at(0) as pool, first.at(7) as alone:
        assert pool is alone
    assert first._inputs is places._inputs


def test_where_the_outputs_of_all_places_do_not_fit_the_first_is_taken(places, monkeypatch):
    import torch

    from runner.capture import CaptureError
    from runner.measure import instruments

    tried = []

    def build(name, call, settings, *, places=None):
        tried.append((name, len(places) if places else None))
        if len(tried) == 1:
            raise CaptureError("memory") from torch.OutOfMemoryError("memory")
        return name

    monkeypatch.setattr(instruments, "build", build)
    monkeypatch.setattr(instruments, "no_stamps", lambda: "")
    settings = SimpleNamespace(instrument="auto")
    assert instruments.choose(None, settings, places) == ("stamped_graphs", "")
    assert tried == [("stamped_graphs", PLACES), ("stamped_graphs", 1)]


def test_a_warm_time_is_of_one_place_whose_data_the_last_call_has_left(places, monkeypatch):
    from runner.measure import cuda, instruments

    asked = []

    def build(name, call, settings, *, places, warm):
        asked.append((len(places), warm))
        return SimpleNamespace(samples=lambda count: [1.0] * count)

    monkeypatch.setattr(instruments, "build", build)
    assert cuda._warm(None, None, places, 10.0) == {"gpu_warm_us": 1.0}
    assert asked == [(1, True)]
