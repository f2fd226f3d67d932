"""Kernels of .cu files on a GPU: arguments of every type, results, views, streams, graphs, and the page's example."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from runner.kernels.unsupported import Unsupported

pytestmark = pytest.mark.gpu

DOCS = Path(__file__).parents[2] / "docs" / "cuda-files.md"
ALL = """
#include <torch/extension.h>
enum { OFFSET = 3 };
template <typename T>
__global__ void all(
    const T* x, T* y, int a, float b, double c, bool d, long e, unsigned char f, half g, const int* none) {
    extern __shared__ unsigned char room[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    room[threadIdx.x] = f;
    double sum = a + b + c + d + (double)(e >> 40) + room[threadIdx.x] + __half2float(g) + (none == nullptr) + OFFSET;
    if (i < a) y[i] = x[i] + (T)sum;
}
__global__ void scale(float4* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float4 v = x[i]; x[i] = make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w); }
}
int main() { all<float><<<1, 1>>>(0, 0, 0, 0, 0, 0, 0, 0, 0, 0); }
"""
LAUNCH = """
from runner import cuda_kernel
whole = cuda_kernel("all.cu", "all<{T}>", threads=128, grid=lambda x, threads: -(-x.numel() // threads),
                    block=lambda threads: threads, shared=lambda bytes: bytes, bytes=1024,
                    arguments=lambda x, y: (x, y, x.numel(), 1.5, 0.25, True, 2**42, 200, 0.5, None))
scale = cuda_kernel("all.cu", "scale", grid=lambda x: -(-x.numel() // 512), block=128, result="x",
                    arguments=lambda x, factor: (x, factor, x.numel() // 4))
"""
SUM = 1.5 + 0.25 + 1 + 4 + 200 + 0.5 + 1 + 3  # without the number of elements


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(tmp_path):
    (tmp_path / "all.cu").write_text(ALL)
    (tmp_path / "launches.py").write_text(LAUNCH)
    return loaded(tmp_path / "launches.py")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 127, 5000])
def test_numbers_of_every_type_arrive(made, dtype, count):
    x = torch.randn(count, device="cuda", dtype=dtype)
    for threads, size in ((32, 1024), (256, 100 * 1024)):  # more than 48 KiB of shared memory too
        y = made.whole(x, threads=threads, bytes=size)
        assert torch.allclose(y, x + (SUM + count), rtol=1e-6)


def test_views_are_copied_and_the_inputs_stay(made):
    x = torch.randn(64, 65, device="cuda")
    for view in (x.t(), x[:, 1:], x[::2], x.flatten()[1:]):
        before = view.clone()
        assert torch.allclose(made.whole(view), view + (SUM + view.numel()))
        assert torch.equal(view, before)


def test_a_result_that_is_given_is_written_wherever_it_lies(made):
    for view in (lambda x: x, lambda x: x[1:], lambda x: x[::2]):
        x = torch.randn(2048 + 1, device="cuda")
        part = view(x)[:1024]
        expected = 3 * part
        assert made.scale(part, 3.0) is part
        assert torch.equal(part, expected)


def test_it_runs_on_the_current_stream_and_in_a_graph(made):
    x = torch.randn(4096, device="cuda")
    expected = x + (SUM + 4096)
    made.whole(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = torch.zeros_like(x).copy_(x)
        y = made.whole(late)
    stream.synchronize()
    assert torch.allclose(y, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = made.whole(x)
    x.add_(1)
    graph.replay()
    assert torch.allclose(z, expected + 1)


def test_another_dtype_is_refused_and_the_gpu_stays_usable(made):
    x = torch.ones(1024, device="cuda")
    with pytest.raises(Unsupported, match="the tensor is float64, and the kernel takes float32"):
        made.scale(x.double(), 2.0)
    assert torch.equal(made.scale(x, 2.0), torch.full_like(x, 2.0))


@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 33, 70)])
def test_the_pages_matrix_products_are_right(tmp_path, shape):
    for name, text in re.findall(r"```\w+\n(?:#|//) (\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    module = loaded(tmp_path / "sgemm" / "sgemm.py")
    m, k, n = shape
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    for name in ("naive", "coalesced", "tiled"):
        for side in (8, 32):
            c = getattr(module, name)(a, b, side=side)
            assert torch.allclose(c.double(), a.double() @ b.double(), atol=1e-4), name
