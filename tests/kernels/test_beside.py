"""Work on a stream of its own comes after what it reads, and before what is after ``join``."""

from __future__ import annotations

import weakref

import pytest
import torch

from runner.kernels import beside
from runner.kernels.beside import Beside


@pytest.mark.parametrize("worth", [True, False])
def test_without_a_gpu_it_is_done_at_once(worth):
    x, done = torch.ones(2), []
    aside = Beside(x, worth=worth)
    aside.run(lambda: done.append(1), x)
    assert done == [1]
    assert not aside.apart
    aside.join()


def chain(x, weights, out):
    """A long chain of products on the current stream, and the sum of each link beside it."""
    aside = Beside(x, worth=True)
    for index, weight in enumerate(weights):
        x = x @ weight
        aside.run(lambda x=x, index=index: torch.sum(x, 0, out=out[index]), x)
    aside.join()
    return out.sum(0)


@pytest.mark.gpu
def test_each_stream_has_another_beside_it():
    x, seen = torch.ones(2, device="cuda"), []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            aside = Beside(x, worth=True)
            aside.run(lambda: seen.append(torch.cuda.current_stream()))
            aside.join()
    assert seen[0] == seen[2] != seen[1]


@pytest.fixture
def long():
    torch.manual_seed(0)
    weights = [torch.randn(2048, 2048, device="cuda") / 2048**0.5 for _ in range(12)]
    return torch.randn(2048, 2048, device="cuda"), weights


@pytest.mark.gpu
def test_it_reads_what_was_written_before_and_is_there_after(long):
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
    aside = Beside(x, worth=True)
    assert aside.apart
    kept = []
    for _ in range(beside.BEHIND + 2):
        operand = torch.ones(4, device="cuda")
        kept.append(weakref.ref(operand))
        aside.run(lambda operand=operand: operand.add(1), operand)
    del operand
    assert [ref() is not None for ref in kept] == [False, False] + [True] * beside.BEHIND
    aside.join()
    assert all(ref() is None for ref in kept)
