"""Matrix product in CUDA C++: on tensor cores for 16 bits, ``matmul.cu``, else tiled, ``matmul_tiled.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, rows_are_aligned, source, with_dense_rows
from ._product import require_product

# Tile of y, depth of a step, tile of a warp, stages. 64 KiB of shared memory: two blocks a multiprocessor hide each
# other's waits. Small ones where large ones would leave multiprocessors without work.
LARGE = (128, 128, 32, 64, 32, 4)
SMALL = (64, 64, 64, 32, 32, 4)


def matmul(a: Tensor, b: Tensor, *, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Product a @ b, as in ``kernels.matmul``. An operand whose rows are not in one piece each is copied first.

    ``variant``: "default", or "tiled": on the ordinary units whatever the dtype, as float32 and float64 always are.
    ``build``: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``a`` is not on an NVIDIA GPU or not of a type above, or what ``build`` needs is missing.
        BuildFailed: the compiler refused.
        ValueError: the shapes or types do not make a product.

    """
    require_product(a, b)
    require_type("matmul", a, "take impl=triton for")
    code = source(__file__, variant if a.element_size() == 2 else "tiled")
    a, b = with_dense_rows(a), with_dense_rows(b)
    (m, k), n = a.shape, b.shape[1]
    y = a.new_empty(m, n)
    aligned = "true" if rows_are_aligned(a, b, y) else "false"
    if code == source(__file__, "tiled"):
        rows = cols = 64 if a.dtype == torch.float64 else 128
        name, threads, shared = f"matmul_kernel<{TYPES[a.dtype]}, {aligned}>", 256, 0
    else:
        tiles = LARGE if enough(m, n, a.device) else SMALL
        rows, cols, depth, warp_rows, warp_cols, stages = tiles
        name = f"matmul_kernel<{TYPES[a.dtype]}, {', '.join(map(str, tiles))}, {aligned}>"
        threads = 32 * (rows // warp_rows) * (cols // warp_cols)
        shared = 2 * max(stages * depth * (rows + cols), rows * cols)
    launch = kernel(code, name, build, a.device)
    if y.numel():
        grid = -(-m // rows) * -(-n // cols)
        pointers = (a.data_ptr(), b.data_ptr(), y.data_ptr())
        launch(grid, threads, *pointers, m, n, k, a.stride(0), b.stride(0), shared=shared)
    return y


def enough(m: int, n: int, device: torch.device) -> bool:
    """Whether tiles of the large kind give every multiprocessor of ``device`` one."""
    if device.type != "cuda":
        return True
    return -(-m // LARGE[0]) * -(-n // LARGE[1]) >= torch.cuda.get_device_properties(device).multi_processor_count
