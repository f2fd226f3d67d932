"""Convolution in CUDA C++: direct, with tiles of x and w in shared memory, without tensor cores (``conv2d.cu``)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..launch import each_time, planned
from ..unsupported import Unsupported
from ._operands import require_operands

SHARED = 48 * 1024  # bytes of shared memory that every block may have
# Of a block and of a thread: filters; rows, columns, and columns of a thread
TILES = ((64, 16, 8, 32, 4), (32, 8, 8, 16, 4), (16, 4, 8, 16, 2), (16, 4, 4, 8, 1))


@planned
def conv2d(
    x: Tensor, w: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1,
    tile: int | None = None, depth: int = 8, variant: str = "default", build: str = "nvrtc",
) -> Tensor:  # fmt: skip
    """Compute the convolution; shapes and dtypes as in ``kernels.conv2d``. It has no backward.

    ``tile``: index into ``TILES``; None: the largest that fits. ``depth``: channels in shared memory at a time, fewer
    if more do not fit. ``variant``: "default". ``build``: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``x`` is not on an NVIDIA GPU, or of another dtype, or the filter is not square or too large.
        BuildFailed: the source does not compile.
        ValueError: the shapes, dtypes or devices do not match.

    """
    require_operands(x, w, padding=padding, dilation=dilation, groups=groups)
    require_type("conv2d", x, "use impl=torch for")
    batch, channels, height, width = x.shape
    filters, _, taps, _ = w.shape
    reach = dilation * (taps - 1) + 1
    rows, cols = ((size + 2 * padding - reach) // stride + 1 for size in (height, width))
    last = torch.channels_last if x.stride(1) == 1 and channels > 1 else torch.contiguous_format
    y = each_time(torch.empty, (batch, filters, rows, cols), dtype=x.dtype, device=x.device, memory_format=last)

    def shared(each: int, down: int, along: int, deep: int) -> int:
        image = ((down - 1) * stride + reach) * (((along - 1) * stride + reach) | 1)
        return deep * (image + taps**2 * (each + 4)) * (8 if x.element_size() == 8 else 4)

    if depth < 1 or w.shape[3] != taps:
        raise Unsupported(f"filters of {taps} x {w.shape[3]}, depth={depth}: give square ones, and 1 or more")
    choices = (
        [one for one in TILES if one[0] <= max(TILES[-1][0], filters // groups)] if tile is None else [TILES[tile]]
    )
    depths = [depth >> halved for halved in range(depth.bit_length())]
    found = [(one, deep) for one in choices for deep in depths if shared(one[0], *one[2:4], deep) <= SHARED]
    if not found:
        least = shared(choices[-1][0], *choices[-1][2:4], 1)
        raise Unsupported(f"the smallest tile needs {least} bytes of shared memory of {SHARED}; use impl=torch")
    (each, own, down, along, pixels), deep = found[0]
    words = ", ".join(map(str, (taps, stride, dilation, each, own, down, along, pixels, deep)))
    launch = kernel(source(__file__, variant), f"conv2d_kernel<{TYPES[x.dtype]}, {words}>", build, x.device)
    if y.numel():
        grid = (batch * -(-rows // down) * -(-cols // along), groups * -(-filters // groups // each), 1)
        sizes = (channels // groups, filters // groups, height, width, rows, cols, padding)
        launch(grid, each // own * down * along // pixels, x, w, y, *sizes, *x.stride(), *w.stride(), *y.stride())
    return y
