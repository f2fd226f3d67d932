"""Names of the parts of a call: told to whoever watches, and unknown to torch.compile."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from runner.kernels.mlp import naive
from runner.kernels.spans import span, watched


def test_only_who_watches_is_told():
    told = []

    @contextmanager
    def named(name):
        told.append(name)
        yield

    with span("before"):
        pass
    with watched(named), span("outer"), span("inner"):
        pass
    with span("after"):
        pass
    assert told == ["outer", "inner"]


def test_what_is_compiled_is_not_compiled_again_when_somebody_watches():
    compiled = torch.compile(naive.mlp, backend="eager", dynamic=False)
    x, w, b = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    graphs = torch._dynamo.utils.counters["stats"]
    compiled(x, w, b, activation="gelu")
    before = graphs["unique_graphs"]
    with watched(torch.profiler.record_function):
        compiled(x, w, b, activation="gelu")
    assert graphs["unique_graphs"] == before > 0
