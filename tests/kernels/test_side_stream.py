"""Work on a side stream runs after what it reads was written, and before what follows ``join``."""

from __future__ import annotations

import weakref

import pytest
import torch

from runner.kernels.side_stream import MAX_PENDING, SideStream


@pytest.mark.parametrize("enabled", [True, False])
def test_without_a_gpu_work_runs_at_once(enabled):
    x, done = torch.ones(2), []
    side = SideStream(x, enabled=enabled)
    side.run(lambda: done.append(1), x)
    assert done == [1]
    assert not side.active
    side.join()


def chain(x, weights, out):
    """A long chain of products on the current stream, and the sum of each link on the side stream."""
    side = SideStream(x, enabled=True)
    for index, weight in enumerate(weights):
        x = x @ weight
        side.run(lambda x=x, index=index: torch.sum(x, 0, out=out[index]), x)
    side.join()
    return out.sum(0)


@pytest.mark.gpu
def test_each_stream_has_its_own_side_stream():
    x, seen = torch.ones(2, device="cuda"), []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            side = SideStream(x, enabled=True)
            side.run(lambda: seen.append(torch.cuda.current_stream()))
            side.join()
    assert seen[0] == seen[2] != seen[1]


@pytest.fixture
def long():
    torch.manual_seed(0)
    weights = [torch.randn(2048, 2048, device="cuda") / 2048**0.5 for _ in range(12)]
    return torch.randn(2048, 2048, device="cuda"), weights


@pytest.mark.gpu
def test_it_reads_what_was_written_before_and_has_finished_after_join(long):
    x, weights = long
    out = torch.full((len(weights), 2048), torch.nan, device="cuda")
    got = chain(x, weights, out)
    want = []
    for weight in weights:
        x = x @ weight
        want.append(x.sum(0))
    assert torch.equal(out, torch.stack(want))
    assert torch.equal(got, out.sum(0))


@pytest.mark.gpu
def test_a_graph_holds_both_streams(long):
    x, weights = long
    out = torch.empty(len(weights), 2048, device="cuda")
    right = chain(x, weights, out).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain(x, weights, out)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(got, right)


@pytest.mark.gpu
def test_operands_are_kept_while_they_may_be_read_and_no_longer():
    x = torch.ones(4, device="cuda")
    side = SideStream(x, enabled=True)
    assert side.active
    kept = []
    for _ in range(MAX_PENDING + 2):
        operand = torch.ones(4, device="cuda")
        kept.append(weakref.ref(operand))
        side.run(lambda operand=operand: operand.add(1), operand)
    del operand
    assert [ref() is not None for ref in kept] == [False, False] + [True] * MAX_PENDING
    side.join()
    assert all(ref() is None for ref in kept)
