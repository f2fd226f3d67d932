"""A .cu file through the command line, on a machine without a GPU."""

from __future__ import annotations

import pytest

KERNEL = """
#include <cstdio>
__global__ void twice(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
int main() { twice<<<1, 1>>>(nullptr, nullptr, 1, 0); }
"""
OWN = """
import torch
from runner import cuda_kernel
def inputs(n=100): return torch.randn(n), torch.empty(n), n
def reference(x, y, n): return 2 * x
fused = cuda_kernel("k.cu", "twice", threads=256, grid=lambda n, threads: -(-n // threads),
                    block=lambda threads: threads, result="y", arguments=lambda x, y, n: (x, y, 2, n))
"""


@pytest.fixture
def written(tmp_path):
    (tmp_path / "k.cu").write_text(KERNEL)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_it_is_unsupported_in_one_sentence(run, written):
    done = run("workload=own.py", "impl=fused", "device=cpu")
    (row,) = done.rows()
    assert (row["status"], row["reason"]) == (
        "unsupported",
        "CUDA C++ needs tensors on an NVIDIA GPU; "
        "to compile this kernel without one: measure=inspect measure.inspect.arch=90",
    )


def test_inspect_compiles_it_and_a_mistake_shows_the_line_of_the_file(run, written):
    pytest.importorskip("cuda.core")
    words = "workload=own.py", "impl=fused", "device=cpu", "measure=inspect", "measure.inspect.arch=90"
    (row,) = run(*words, "impl.args.threads=128").rows()
    assert row["reason"] == "not run, only measured by inspect: CUDA C++ needs tensors on an NVIDIA GPU"
    assert (row["metrics"]["kernel_name"], row["metrics"]["load_bits"]) == ("twice", 32)
    (written / "k.cu").write_text(KERNEL.replace("factor *", "factr *"))
    (row,) = run(*words).rows()
    assert row["status"] == "build_failed"
    assert 'NVRTC: twice for sm_90a: k.cu(5): error: identifier "factr" is undefined' in row["reason"]
    (row,) = run(*words, "workload.dtype=float64").rows()
    assert row["status"] == "build_failed"
    (written / "k.cu").write_text(KERNEL)
    (row,) = run(*words, "workload.dtype=float64").rows()
    assert row["reason"].startswith(
        "twice: argument 1, float const*: the tensor is float64, and the kernel takes float32"
    )
