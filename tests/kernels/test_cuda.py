"""CUDA C++ on a GPU: any strides, points that are close, other streams and threads, graphs, and both builders."""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module

import pytest
import torch

from runner.kernels import cuda_build, cuda_extension
from runner.kernels.unsupported import Unsupported

pytestmark = pytest.mark.gpu

SCALE = """
__global__ void scale(float* x, long long factor) {
    extern __shared__ float values[];
    values[threadIdx.x + 20000] = x[threadIdx.x];
    x[threadIdx.x] = values[threadIdx.x + 20000] * factor;
}
"""


@cache
def function(op):
    return getattr(import_module(f"runner.kernels.{op}.cuda"), op)


@pytest.fixture(params=["nvrtc", "extension"])
def build(request):
    if request.param == "extension" and (why := cuda_extension.missing()):
        pytest.skip(why)
    return request.param


VIEWS = {
    "as they are": lambda a, b: (a, b),
    "transposed": lambda a, b: (a.t().contiguous().t(), b.t().contiguous().t()),
    "sliced": lambda a, b: (a[3:, 8:488], b[8:488, 8:]),
    "unaligned": lambda a, b: (a[:, 1:], b[1:, 3:]),
    "every other": lambda a, b: (a[:, ::2], b[::2]),
    "one row for all": lambda a, b: (a[:1].expand(5, -1), b),
    "no rows": lambda a, b: (a[:0], b),
    "no terms": lambda a, b: (a[:, :0], b[:0]),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul_of_any_views(view, dtype):
    a, b = view(torch.randn(300, 500, device="cuda", dtype=dtype), torch.randn(500, 260, device="cuda", dtype=dtype))
    exact = a.double() @ b.double()
    for variant in ("default", "tiled"):
        y = function("matmul")(a, b, variant=variant)
        assert y.shape == exact.shape
        assert torch.allclose(y.double(), exact, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-3)


def test_cdist_is_exact_where_points_are_close_and_far_from_zero():
    a = torch.randn(300, 256, device="cuda") + 1000
    b = a + torch.randn_like(a) * 1e-3
    exact = torch.stack([(row - b.double()).square().sum(-1).sqrt() for row in a.double()])
    assert torch.allclose(function("cdist")(a, b, p=2).double(), exact, rtol=1e-6, atol=0)
    assert not function("cdist")(a, a, p=2).diagonal().any()


@pytest.mark.parametrize("form", ["tanh", "erf"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_gives_the_same_wherever_a_view_begins(form, dtype):
    x = (torch.randn(10_003, device="cuda") * 3).to(dtype)
    y = function("gelu")(x, form=form)
    for start in range(1, 9):
        assert torch.equal(function("gelu")(x[start:], form=form), y[start:])


def test_the_lectures_gelu_is_right_and_says_what_it_is_for():
    x = torch.randn(10_003, device="cuda") * 3
    y = function("gelu")(x, form="tanh", variant="lecture")
    assert torch.allclose(y, torch.nn.functional.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)
    for other in ((x.half(), "tanh"), (x, "erf")):
        with pytest.raises(Unsupported, match="float32 and form=tanh only"):
            function("gelu")(other[0], form=other[1], variant="lecture")


def test_both_builders_give_the_same(build):
    x = torch.randn(100_003, device="cuda")
    assert torch.equal(function("gelu")(x, form="tanh", build=build), function("gelu")(x, form="tanh"))
    a, b = (torch.randn(130, 130, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    assert torch.equal(function("matmul")(a, b, build=build), function("matmul")(a, b))


def test_a_block_may_have_more_than_48_kib_of_shared_memory_up_to_what_there_is(build, tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    scale = cuda_build.kernel(tmp_path / "scale.cu", "scale", build, torch.device("cuda", 0))
    x = torch.ones(32, device="cuda:0")
    scale(1, 32, x.data_ptr(), 3, shared=96 * 1024)
    assert x.tolist() == [3] * 32
    with pytest.raises(Unsupported, match="shared memory"):
        scale(1, 32, x.data_ptr(), 3, shared=2**20)


def test_it_runs_on_the_current_stream_in_any_thread_and_in_graphs(build):
    x = torch.randn(1000, device="cuda")
    expected, seen = function("gelu")(x, form="erf", build=build), []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = torch.zeros_like(x).copy_(x)
        seen.append(function("gelu")(late, form="erf", build=build))
    stream.synchronize()
    thread = threading.Thread(target=lambda: seen.append(function("gelu")(x, form="erf", build=build)))
    thread.start()
    thread.join()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen.append(function("gelu")(x, form="erf", build=build))
    graph.replay()
    assert len(seen) == 3
    assert all(torch.equal(y, expected) for y in seen)


def test_a_launch_that_the_driver_refuses_is_a_cuda_error(build, tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE)
    scale = cuda_build.kernel(tmp_path / "scale.cu", "scale", build, torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match=r"^CUDA error: "):
        scale(1, 4096, 0, 0)
