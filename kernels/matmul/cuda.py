"""Matrix product in CUDA C++: 16-bit types on tensor cores (``matmul.cu``), others tiled (``matmul_tiled.cu``)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, rows_are_aligned, source, with_dense_rows
from ..launch import each_time, planned
from ._product import require_product

# Rows and columns of a tile of y, depth of a step, rows and columns of a warp's tile, stages. With 64 KiB of shared
# memory two blocks fit on a multiprocessor and hide each other's waits. SMALL is for products whose large tiles would
# leave multiprocessors idle.
LARGE = (128, 128, 32, 64, 32, 4)
SMALL = (64, 64, 64, 32, 32, 4)


@planned
def matmul(a: Tensor, b: Tensor, *, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Compute a @ b; shapes as in ``kernels.matmul``, dtypes float16, bfloat16, float32 and float64.

    Args:
        a: a matrix; it is copied first if its rows are not contiguous.
        b: a matrix, likewise.
        variant: "default", or "tiled" to compute 16-bit types without tensor cores too.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``a`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.
        ValueError: the shapes, dtypes or devices do not match.

    """
    require_product(a, b)
    require_type("matmul", a, "use impl=triton for")
    code = source(__file__, variant if a.element_size() == 2 else "tiled")
    a, b = with_dense_rows(a), with_dense_rows(b)
    (m, k), n = a.shape, b.shape[1]
    y = each_time(torch.empty, m, n, dtype=a.dtype, device=a.device)
    aligned = "true" if rows_are_aligned(a, b, y) else "false"
    if code == source(__file__, "tiled"):
        rows = cols = 64 if a.dtype == torch.float64 else 128
        name, threads, shared = f"matmul_kernel<{TYPES[a.dtype]}, {aligned}>", 256, 0
    else:
        tiles = LARGE if fills_gpu(m, n, a.device) else SMALL
        rows, cols, depth, warp_rows, warp_cols, stages = tiles
        name = f"matmul_kernel<{TYPES[a.dtype]}, {', '.join(map(str, tiles))}, {aligned}>"
        threads = 32 * (rows // warp_rows) * (cols // warp_cols)
        shared = 2 * max(stages * depth * (rows + cols), rows * cols)
    launch = kernel(code, name, build, a.device)
    if y.numel():
        grid = -(-m // rows) * -(-n // cols)
        launch(grid, threads, a, b, y, m, n, k, a.stride(0), b.stride(0), shared=shared)
    return y


def fills_gpu(m: int, n: int, device: torch.device) -> bool:
    """Return whether y [m, n] has a large tile for every multiprocessor of ``device``."""
    if device.type != "cuda":
        return True
    return -(-m // LARGE[0]) * -(-n // LARGE[1]) >= torch.cuda.get_device_properties(device).multi_processor_count
