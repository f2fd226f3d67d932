"""reduce_sum, reduce_max, argmax, norm: any strides, what is no number, gradients, and how a launch is divided."""

from __future__ import annotations

import os

import pytest
import torch

from runner import bench
from runner.models.reduction import MOST_TERMS

pytest.importorskip("triton")
from runner.kernels.reductions import plan_for, reduce
from runner.kernels.stream_memory import RESERVED_CAPTURES

OPS = ("reduce_sum", "reduce_max", "argmax", "norm")
DIMS = ("all", 0, 1)
IMPLS = ("naive", "torch", "triton")

VIEWS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[1:, 4:28],
    "every other": lambda x: x[:, ::2],
    "unaligned": lambda x: x.flatten()[1:1281].view(40, 32),
    "one column": lambda x: x[:, 3:4],
    "one row for all": lambda x: x[:1].expand(7, -1),
}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("op", OPS)
def test_any_view_gives_what_float64_gives(load, device, op, impl):
    function, exact = load(op, impl), load(op, "torch")
    for view in VIEWS.values():
        x = view(torch.randn(40, 33, device=device))
        for dim in DIMS:
            y, wanted = function(x, dim=dim), exact(x.double(), dim=dim)
            assert y.shape == wanted.shape
            assert torch.allclose(y.double(), wanted.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_what_is_no_number_and_ties_across_programs(load, device, impl):
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[1, nan, inf, nan], [-inf] * 4, [-0.0, 0.0, -1, -0.0], [2, inf, inf, -inf]], device=device)
    first, most = load("argmax", impl)(x, dim=1), load("reduce_max", impl)(x, dim=1)
    assert first.tolist() == [1, 0, 0, 1]
    assert most.nan_to_num(nan=7, posinf=9, neginf=-9).tolist() == [7, -9, 0, 9]
    assert load("argmax", impl)(x, dim="all").tolist() == 1
    assert load("reduce_sum", impl)(x, dim=1).isnan().tolist() == [True, False, False, True]
    wide = torch.zeros(1, 20_000, device=device)  # several programs
    wide[0, [9_000, 15_000, 19_999]] = 1
    assert load("argmax", impl)(wide, dim=1).tolist() == [9_000]
    wide[0, [8_500, 13_000]] = nan
    assert load("argmax", impl)(wide, dim=1).tolist() == [8_500]
    assert load("reduce_max", impl)(wide, dim="all").isnan()


def test_triton_reads_long_rows_of_odd_length_from_anywhere(load, device):
    for dtype, offset, cols in ((torch.float32, 1, 9001), (torch.float16, 3, 20001), (torch.float64, 1, 3001)):
        x = torch.randint(-9, 9, (3 * cols + offset,), device=device).to(dtype)[offset:].view(3, cols)
        x[0] = -torch.inf
        x[1, [cols - 2, cols - 1]] = torch.nan
        x[2, [0, cols // 2]] = 10
        for op in ("reduce_sum", "reduce_max", "argmax"):
            wanted = load(op, "torch")(x.double(), dim=1)
            assert torch.allclose(load(op, "triton")(x, dim=1).double(), wanted.double(), rtol=1e-3, equal_nan=True)
        assert load("argmax", "triton")(x[1:].flatten()[1:].view(1, -1), dim="all") == cols - 3


def test_triton_takes_no_elements_and_refuses_what_has_no_answer(load, device):
    x = torch.ones(0, 3, device=device)
    assert load("reduce_sum", "triton")(x, dim=0).tolist() == [0, 0, 0]
    assert load("norm", "triton")(x, dim=1).shape == (0,)
    with pytest.raises(ValueError, match="a matrix without elements has no maximum: give at least one element"):
        load("argmax", "triton")(x, dim="all")
    for bad, dim in ((torch.ones(3, device=device), 0), (torch.ones(3, 3, device=device), 2)):
        with pytest.raises(ValueError, match="give a matrix, and dim all, 0 or 1"):
            load("reduce_max", "triton")(bad, dim=dim)


def test_triton_has_the_gradients_of_pytorch(load, device):
    for dim, shape in (
        *((dim, (5, 7)) for dim in DIMS),
        (0, (3, 1500)),
        (1, (3, 1500)),
    ):  # blocks of several rows, and of two
        x = torch.randn(shape, device=device)
        x[2] = 0  # the gradient of a norm that is 0 is 0
        x.requires_grad_()
        for op in ("reduce_sum", "norm"):
            y, wanted = (load(op, impl)(x, dim=dim) for impl in ("triton", "torch"))
            dy = torch.randn_like(y)
            assert torch.allclose(*(torch.autograd.grad(out, x, dy)[0] for out in (y, wanted)), atol=1e-6)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="needs no kernel")
def test_a_plan_covers_all_elements_evenly_and_adds_few_into_one_accumulator():
    for op, itemsize in (("sum", 2), ("argmax", 4), ("norm", 8)):
        for outs, count in ((1, 1), (1, 2**20), (1, 2**34), (1000, 1001), (2**20, 3), (3, 2**20), (8192, 8192)):
            for inner in (True, False):
                plan = plan_for(op, outs, count, itemsize, inner, True, 132)
                assert plan.groups * plan.outs >= outs > (plan.groups - 1) * plan.outs
                rounds = plan.segments * plan.rounds + plan.extra
                assert rounds * plan.unroll * plan.step >= count > (rounds - 1) * plan.unroll * plan.step
                assert 0 <= plan.extra < plan.segments < 2**16  # the most programs of a grid's second dimension
                assert plan.rounds > 0
                assert (plan.rounds + 1) * plan.unroll <= MOST_TERMS


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_graphs_and_streams_do_not_disturb_each_others_counters(op):
    x = torch.randn(64, 2**18, device="cuda")
    wanted = reduce(op, x, 1)
    graphs = [torch.cuda.CUDAGraph() for _ in range(50)]  # more than there is memory reserved for
    outputs = []
    for graph in graphs:
        with torch.cuda.graph(graph):
            outputs.append(reduce(op, x, 1))
    streams = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(3):
        for index, graph in enumerate(graphs):
            with torch.cuda.stream(streams[index % 4]):
                graph.replay()
                outputs.append(reduce(op, x, 1))
    torch.cuda.synchronize()
    assert all(torch.equal(y, wanted) for y in outputs)


@pytest.mark.gpu
def test_graphs_hold_any_number_of_launches_and_nothing_else():
    x = torch.randn(64, 2**18, device="cuda")
    timing = bench(lambda: [reduce("sum", x, 1) for _ in range(2 * RESERVED_CAPTURES)])
    assert timing.instrument == "graph_timestamps"  # which refuses graphs that differ, as by a node that fills memory


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2**20, 2**31 + 8])
def test_more_than_2_to_the_31_elements(rows):
    cols = (2**31 + 8) // rows + (rows == 2**20)
    x = torch.zeros(rows, cols, device="cuda", dtype=torch.float16)
    x[-1, -1] = 1
    for dim in DIMS:
        assert reduce("sum", x, dim).sum().item() == 1
        assert reduce("max", x, dim).flatten()[-1].item() == 1
    assert reduce("argmax", x, "all").item() == x.numel() - 1
