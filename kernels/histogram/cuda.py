"""Histogram in CUDA C++: ``histogram.cu`` counts in shared memory, ``histogram_global.cu`` in the result itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import kernel, source
from ..cuda_kernel import FREE_SHARED
from ..launch import each_time, planned
from ..unsupported import Unsupported

THREADS = 1024  # threads of a block, as in histogram.cu
BLOCKS = 2  # of a multiprocessor
ACCESS = 16  # bytes that a thread reads at once
COUNTER_BYTES = 4
MOST_COPIES = 32  # of each counter: one for each lane of a warp


@planned
def histogram(x: Tensor, *, bins: int, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Count the elements of ``x`` in each bin; shapes and dtypes as in ``kernels.histogram``.

    Args:
        x: a tensor; it is copied first if it is not contiguous.
        bins: at most 12288 for the default variant, whose counters are in shared memory.
        variant: "default", or "global" for one atomic operation on global memory for each element.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``x`` is not float32 on an NVIDIA GPU, there are too many bins, or the builder lacks something.
        BuildFailed: the source does not compile.

    """
    code = source(__file__, variant)
    if x.dtype != torch.float32:
        raise Unsupported(f"histogram in CUDA C++ takes torch.float32; convert from {x.dtype}")
    x = x.contiguous()
    aligned = "true" if x.data_ptr() % ACCESS == 0 else "false"
    arguments, shared = aligned, 0
    if variant != "global":
        copies = copies_for(bins)
        arguments, shared = f"{copies}, {aligned}", bins * copies * COUNTER_BYTES
    launch = kernel(code, f"histogram_kernel<{arguments}>", build, x.device)
    y = each_time(torch.zeros, bins, dtype=torch.int64, device=x.device)
    if x.numel():
        most = BLOCKS * torch.cuda.get_device_properties(x.device).multi_processor_count
        blocks = min(most, -(-x.numel() // (THREADS * ACCESS // x.element_size())))
        launch(blocks, THREADS, x, y, x.numel(), bins, shared=shared)
    return y


def copies_for(bins: int) -> int:
    """Return how many counters each bin has in the shared memory of a block, a power of 2.

    Raises Unsupported if there is no room for one.
    """
    room = FREE_SHARED // (bins * COUNTER_BYTES)
    if not room:
        most = FREE_SHARED // COUNTER_BYTES
        raise Unsupported(f"{bins} bins do not fit into shared memory; give at most {most}, or impl.variant=global")
    return min(MOST_COPIES, 1 << room.bit_length() - 1)
