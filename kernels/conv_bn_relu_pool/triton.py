"""The block in one Triton kernel, for inference: the convolution is a matrix product, and all else is its epilogue.

A program computes a tile of pooled pixels x filters. Its rows are the pixels of the convolution, in the order of the
windows: WINDOW rows, of which pool^2 count, are the numbers of which one remains. Its product runs over channels and
places of the filter; nothing is written but y. Batch norm is a factor and an addend for each filter. A factor may be
negative, so it comes before the largest number of a window is taken.

The channels of a pixel must adjoin: else tensor cores wait for numbers that are loaded one by one. Inputs that lie
otherwise are copied first, as cuDNN does. float32 is multiplied without tensor cores: with Triton 3.6, products of
operands rounded to TF32 were wrong in some tiles on an H200.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..conv2d._operands import require_operands
from ..triton_device import require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported

TILE = {2: (128, 64, 32, 4, 3), 4: (64, 64, 32, 4, 3)}  # by bytes of a number: rows, filters, depth, warps, stages


@triton.jit
def _larger(x, z):
    return tl.maximum(x, z, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _block(
    x_ptr, w_ptr, gamma_ptr, beta_ptr, mean_ptr, variance_ptr, y_ptr,
    windows, filters, height, width, rows, cols, padding, eps,
    x_n, x_c, x_h, x_w, w_f, w_c, w_h, w_w, y_n, y_c, y_h, y_w,
    CHANNELS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of y. ``windows``: pixels of y in all images; ``rows``, ``cols``: of y."""
    tiles = tl.cdiv(filters, BLOCK_N)
    first = (tl.program_id(0) // tiles).to(tl.int64) * (BLOCK_M // WINDOW)
    f = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    pixel, within = first + m // WINDOW, m % WINDOW
    n, i, j = pixel // (rows * cols), pixel // cols % rows, pixel % cols
    top, left = i * POOL + within // POOL - padding, j * POOL + within % POOL - padding
    counts = (pixel < windows) & (within < POOL * POOL)
    x_row = x_ptr + n * x_n + top * x_h + left * x_w
    w_row = w_ptr + f.to(tl.int64) * w_f
    z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, CHANNELS * KERNEL_H * KERNEL_W, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        tap, c = k // CHANNELS, (k % CHANNELS).to(tl.int64)
        # int64, because int32 offsets overflow at 2**31 elements.
        down, along = (tap // KERNEL_W).to(tl.int64), (tap % KERNEL_W).to(tl.int64)
        h, v = top[:, None] + down[None, :], left[:, None] + along[None, :]
        real = k < CHANNELS * KERNEL_H * KERNEL_W
        inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & counts[:, None] & real[None, :]
        of_x = c * x_c + down * x_h + along * x_w
        of_w = c * w_c + down * w_h + along * w_w
        a = tl.load(x_row[:, None] + of_x[None, :], mask=inside, other=0.0)
        b = tl.load(w_row[:, None] + of_w[None, :], mask=(f < filters)[:, None] & real[None, :], other=0.0)
        z = tl.dot(a, b.T, z, input_precision="ieee")
    known = f < filters
    gamma = tl.load(gamma_ptr + f, mask=known, other=0.0).to(tl.float32)
    variance = tl.load(variance_ptr + f, mask=known, other=1.0).to(tl.float32)
    scale = gamma / tl.sqrt(variance + eps)
    mean = tl.load(mean_ptr + f, mask=known, other=0.0).to(tl.float32)
    beta = tl.load(beta_ptr + f, mask=known, other=0.0).to(tl.float32)
    z = (z - mean[None, :]) * scale[None, :] + beta[None, :]
    z = tl.where((within < POOL * POOL)[:, None], _larger(z, 0.0), 0.0)
    y = tl.reduce(tl.reshape(z, (BLOCK_M // WINDOW, WINDOW, BLOCK_N)), 1, _larger)
    p = first + tl.arange(0, BLOCK_M // WINDOW)
    to = p // (rows * cols) * y_n + p // cols % rows * y_h + p % cols * y_w
    places = to[:, None] + f.to(tl.int64)[None, :] * y_c
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=(p < windows)[:, None] & known[None, :])


@planned
def conv_bn_relu_pool(
    x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor | None = None, variance: Tensor | None = None,
    *, padding: int = 0, pool: int = 2, eps: float = 1e-5,
    ROWS: int | None = None, FILTERS: int | None = None, DEPTH: int | None = None,
    num_warps: int | None = None, num_stages: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute the block for inference; shapes and dtypes as in ``kernels.conv_bn_relu_pool``. It has no backward.

    ROWS, FILTERS and DEPTH are those of a tile; None: what is fastest in general.

    Raises:
        Unsupported: for training, which needs the mean of the batch before it can go on; or ``x`` is no float of up to
            32 bits on an NVIDIA GPU; or ``pool`` is above 11; or Triton is older than 3.4.
        ValueError: the shapes, dtypes or devices do not match.

    """
    if mean is None or variance is None:
        raise Unsupported("one kernel cannot know the mean of the batch: give workload.mode=inference")
    require_operands(x, w, gamma, beta, mean, variance, padding=padding)
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise Unsupported(f"this kernel takes float32, float16 and bfloat16; convert from {x.dtype}")
    window = triton.next_power_of_2(pool * pool)
    if window > 128:
        raise Unsupported(f"windows of {pool} x {pool} do not fit a tile; use impl=torch")
    require_gpu(x)
    require_products()
    batch, channels, height, width = x.shape
    filters, _, down, along = w.shape
    rows, cols = ((s + 2 * padding - k + 1) // pool for s, k in ((height, down), (width, along)))
    last = x.stride(1) == 1 and channels > 1
    form = torch.channels_last if last else torch.contiguous_format
    y = each_time(torch.empty, (batch, filters, rows, cols), dtype=x.dtype, device=x.device, memory_format=form)
    vectors = [
        each if each.stride(0) == 1 else each_time(Tensor.contiguous, each) for each in (gamma, beta, mean, variance)
    ]
    given = (ROWS, FILTERS, DEPTH, num_warps, num_stages)
    m, n, k, warps, stages = (own or usual for own, usual in zip(given, TILE[x.element_size()], strict=True))
    m = max(m, window)
    n = max(16, min(n, triton.next_power_of_2(filters)))
    x, w = (each if each.stride(1) == 1 else _channels_last(each) for each in (x, w))
    if y.numel():
        grid = (triton.cdiv(batch * rows * cols * window, m) * triton.cdiv(filters, n),)
        repeatable(_block)[grid](
            x, w, *vectors, y, batch * rows * cols, filters, height, width, rows, cols, padding, eps,
            *x.stride(), *w.stride(), *y.stride(), CHANNELS=channels, KERNEL_H=down, KERNEL_W=along, POOL=pool,
            WINDOW=window, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return y


def _channels_last(x: Tensor) -> Tensor:
    return each_time(Tensor.contiguous, x, memory_format=torch.channels_last)
