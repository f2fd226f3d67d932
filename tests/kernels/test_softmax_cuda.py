"""softmax in CUDA C++ on a GPU: every design at every type, and blocks that wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runner.kernels import cuda_build, cuda_extension, stream_memory
from runner.kernels.softmax import _cuda_exchange, cuda
from runner.kernels.softmax._cuda_plan import Rows, plan
from runner.kernels.softmax.cuda import processor_of, softmax
from runner.kernels.unsupported import Unsupported

INF = torch.inf
DTYPES = ["float32", "bfloat16", "float16"]
# of a warp, of a block; of 4, 8 and 16 blocks; of the ring: in whole slots, and not
COLS = [
    8,
    1000,
    1024,
    5000,
    16_384,
    16_392,
    32_768,
    40_008,
    65_544,
    131_072,
    200_008,
    262_144,
    262_152,
    600_000,
    1_048_576,
]
ODD = [1, 7, 65, 1001, 33_333, 70_001, 262_147, 300_001]  # not in whole vectors: the same designs, with edges
WIDE = 524_288  # of the ring in any type


def test_on_a_cpu_it_says_what_would_help():
    with pytest.raises(Unsupported, match="needs tensors on an NVIDIA GPU"):
        softmax(torch.zeros(2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", COLS + ODD)
def test_every_design_matches_float64(make, error, dtype, cols):
    rows = min(2000, max(5, 2**24 // cols))
    workload, (x,) = make("softmax", dtype=dtype, device="cuda", rows=rows, cols=cols)
    assert error(workload.reference(x), [softmax(x)]) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [c for c in COLS + ODD if c > 16])
def test_infinities_nan_and_large_logits_in_every_design(make, error, dtype, cols):
    workload, (x,) = make("softmax", dtype=dtype, device="cuda", rows=9, cols=cols)
    x[0] = -INF
    x[1, cols // 3] = INF
    x[2, cols - 1] = torch.nan
    x[3, : cols - 1] = -INF
    x[4, cols // 2 :] = -INF  # whole slices of it
    x[5] = 6e4
    x[6] *= 1e4
    y = softmax(x)
    assert y[:3].isnan().all()
    assert y[3, cols - 1] == 1
    assert not y[3, : cols - 1].any()
    assert error(workload.reference(x[4:]), [y[4:]]) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 33, 34])
def test_fewer_slices_than_blocks_and_a_last_round_of_few(make, error, rows):
    workload, (x,) = make("softmax", dtype="bfloat16", device="cuda", rows=rows, cols=WIDE)
    assert error(workload.reference(x), [softmax(x)]) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("apart", [1, 8])  # elements between rows: loaded one by one, and in vectors with edges
def test_odd_rows_that_lie_apart(make, error, rows, apart):
    workload, (x,) = make("softmax", dtype="bfloat16", device="cuda", rows=rows, cols=20_001)
    spread = torch.full((rows, 20_001 + apart), INF, dtype=x.dtype, device="cuda")[:, :20_001]
    spread.copy_(x)
    assert error(workload.reference(x), [softmax(spread)]) <= 1


@pytest.mark.gpu
def test_float64_in_few_wide_rows(make, error):
    workload, (x,) = make("softmax", dtype="float64", device="cuda", rows=3, cols=500_001)
    assert error(workload.reference(x), [softmax(x)]) <= 1


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements_through_the_ring():
    rows = 2**31 // WIDE + 3
    x = torch.zeros(rows, WIDE, dtype=torch.bfloat16, device="cuda")
    x[-1, 5] = 20
    y = softmax(x)
    assert (y[-2] == 2.0**-19).all()
    assert y[-1, 5] == 1


@pytest.mark.gpu
def test_shapes_and_types_in_turn_share_what_a_stream_has(make, error):
    drawn = [
        make("softmax", dtype=dtype, device="cuda", rows=rows, cols=cols)
        for dtype in DTYPES
        for rows, cols in ((40, WIDE), (3, 1_048_576), (60, 300_000))
    ]
    for _ in range(20):
        outputs = [softmax(x) for _, (x,) in drawn]
    for (workload, inputs), y in zip(drawn, outputs, strict=True):
        assert error(workload.reference(*inputs), [y]) <= 1


@pytest.mark.gpu
def test_two_streams_of_different_priority_at_once(make, error):
    streams = [torch.cuda.Stream(priority=priority) for priority in (0, -1)]
    drawn = [make("softmax", dtype="bfloat16", device="cuda", rows=rows, cols=WIDE) for rows in (90, 123)]
    torch.cuda.synchronize()
    outputs = [None, None]
    for _ in range(100):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                outputs[i] = softmax(drawn[i][1][0])
    torch.cuda.synchronize()
    for (workload, inputs), y in zip(drawn, outputs, strict=True):
        assert error(workload.reference(*inputs), [y]) <= 1
    _cuda_exchange.exchanges(0).raise_if_timed_out()


@pytest.mark.gpu
def test_threads_that_share_a_stream_at_once(make, error):
    drawn = [make("softmax", dtype="bfloat16", device="cuda", rows=20 * i, cols=WIDE) for i in range(1, 7)]
    outputs = [None] * len(drawn)

    def call(i):
        for _ in range(50):
            outputs[i] = softmax(drawn[i][1][0])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(drawn))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (workload, inputs), y in zip(drawn, outputs, strict=True):
        assert error(workload.reference(*inputs), [y]) <= 1


def captured(x):
    graph = torch.cuda.CUDAGraph()
    softmax(x)  # builds, outside of the capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = softmax(x)
    return graph, y


@pytest.mark.gpu
def test_a_graph_replayed_a_thousand_times(make, error):
    workload, (x,) = make("softmax", dtype="float32", device="cuda", rows=50, cols=WIDE)
    graph, y = captured(x)
    for turn in range(1000):
        if turn % 250 == 249:
            x.mul_(-0.5)
            y.zero_()
        graph.replay()
    assert error(workload.reference(x), [y]) <= 1


@pytest.mark.gpu
def test_two_graphs_of_one_stream_replayed_at_once_beside_a_call(make, error):
    drawn = [make("softmax", dtype="float32", device="cuda", rows=rows, cols=WIDE) for rows in (30, 60, 20)]
    graphs = [captured(x) for _, (x,) in drawn[:2]]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(100):
        for (graph, _), stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        called = softmax(drawn[2][1][0])
    torch.cuda.synchronize()
    for (workload, inputs), y in zip(drawn, [y for _, y in graphs] + [called], strict=True):
        assert error(workload.reference(*inputs), [y]) <= 1


@pytest.mark.gpu
def test_more_captures_than_there_is_memory_reserved_for_are_right_all_the_same(make, error):
    _needs_the_ring()
    workload, (x,) = make("softmax", dtype="bfloat16", device="cuda", rows=20, cols=WIDE)
    exchanges = _cuda_exchange.Exchanges(x.device)
    through_the_ring(x, exchanges)
    torch.cuda.synchronize()
    graphs = [torch.cuda.CUDAGraph() for _ in range(stream_memory.RESERVED_CAPTURES + 1)]
    for graph in graphs:
        with torch.cuda.graph(graph):
            through_the_ring(x, exchanges)
            y = through_the_ring(x, exchanges)
    for graph in graphs[-1:] * 3:
        graph.replay()
    assert error(workload.reference(x), [y]) <= 1


def through_the_ring(x, exchanges=None, blocks=0, limit_ns=_cuda_exchange.LIMIT_NS):
    """Softmax of ``x`` [rows, cols] by the ring kernel, as on a GPU without clusters of 16 blocks.

    ``blocks``: 0 for all; with 1 a block waits for slices that nobody computes.
    """
    exchanges = exchanges or _cuda_exchange.exchanges(0)
    (rows, cols), per = x.shape, 16 // x.element_size()
    chosen = plan(Rows(x.element_size(), rows, cols, cols, 1, True), replace(processor_of(x.device), cluster=8))
    assert chosen.design == "softmax_ring"
    name = chosen.kernel.format(T=cuda_build.TYPES[x.dtype])
    kernel = cuda_build.kernel(cuda_build.source(cuda.__file__, "default"), name, "nvrtc", x.device)
    y = torch.empty_like(x)
    memory = exchanges.take(rows * chosen.slices)
    sizes = rows, cols // per, cols // per, chosen.slices
    pointers = memory.data_ptr(), exchanges.flag_address, limit_ns
    shape = {"shared": chosen.shared, "cooperative": True}
    kernel(blocks or chosen.blocks, chosen.threads, x.data_ptr(), y.data_ptr(), *sizes, *pointers, **shape)
    return y


BROKEN = """
import torch
from runner.kernels.softmax import _cuda_exchange, cuda
from test_softmax_cuda import through_the_ring
x = torch.randn(2, 524288, device="cuda")
right = cuda.softmax(x)
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):  # its memory is for launches of as many blocks
    wrong = through_the_ring(x, blocks=1, limit_ns=50_000_000)
torch.cuda.synchronize()
assert wrong.isnan().any()
try:
    cuda.softmax(x)
    raise SystemExit("no error was raised")
except _cuda_exchange.KernelTimeout as error:
    print(error)
assert torch.equal(cuda.softmax(x), right)
"""


@pytest.mark.gpu
def test_a_row_that_no_block_can_finish_ends_in_an_error_and_not_in_a_hang():
    """In a process of its own, so that a hang would be one of that process."""
    _needs_the_ring()
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "an earlier softmax on cuda:0 is wrong" in ran.stdout


@pytest.mark.gpu
def test_the_ring_is_right_for_rows_that_large_clusters_take(make, error):
    _needs_the_ring()
    workload, (x,) = make("softmax", dtype="bfloat16", device="cuda", rows=70, cols=200_008)
    assert error(workload.reference(x), [through_the_ring(x)]) <= 1


@pytest.mark.gpu
def test_a_cluster_of_16_blocks_has_room_here():
    _needs_the_ring()
    source = cuda_build.source(cuda.__file__, "default")
    kernel = cuda_build.kernel(
        source, "softmax_cluster<float, 256, 8, 8, 16, 5, false>", "nvrtc", torch.device("cuda", 0)
    )
    assert kernel.runs_clusters(16, 256)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [200_008, WIDE])
def test_the_other_builder_launches_clusters_of_16_and_cooperatively_too(make, error, cols):
    if why := cuda_extension.missing():
        pytest.skip(why)
    workload, (x,) = make("softmax", dtype="bfloat16", device="cuda", rows=20, cols=cols)
    assert error(workload.reference(x), [softmax(x, build="extension")]) <= 1


def _needs_the_ring():
    x = Rows(2, 40, WIDE, WIDE, 1, True)
    if plan(x, processor_of(torch.device("cuda", 0))).design != "softmax_ring":
        pytest.skip("no ring on this GPU")
