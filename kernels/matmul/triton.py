"""Matrix product in Triton: three kernels, chosen by ``_configurations``.

    descriptors   Hopper: tiles come by the tensor memory accelerator and are multiplied by warpgroup instructions
                  (wgmma); one program a multiprocessor takes tile after tile, so that the next tile's loads are on
                  their way while this one is stored
    skinny        Hopper, at most 128 rows or columns: the wide operand stands where the instruction wants at least 64
                  rows, y^T = b^T a^T, and is read once, at the speed of memory
    pointers      any GPU, stride and alignment: tiles come by cp.async where they are aligned

On Hopper an operand that descriptors cannot take (a base or stride that is no multiple of 16 bytes; in tf32 and float8,
one whose rows do not run along k) is copied first if the product is large: the copy is O(n^2), the product O(n^3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import Unsupported
from kernels.matmul._configurations import Configuration, configuration, pointers
from kernels.triton_device import require_gpu

ALIGNED = 16  # bytes, of the base and of every stride but the last of what a descriptor describes
WORTH_A_COPY = 2**27  # products from which on a copy of the operands costs less than loading them by pointers
INTERPRETED = ((9, 0), 132)  # what the interpreter is taken for: the kernels for Hopper are those to check
SUM_BLOCK = 1024


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    # GROUP_M rows of tiles are walked column by column: what runs together shares rows of a and columns of b in L2.
    group = tile // (GROUP_M * tiles_n)
    rows = min(tiles_m - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + within % rows, within // rows


@triton.jit
def _store(y, y_ptr, m, n, row, col, tile, DESCRIBED: tl.constexpr):
    if DESCRIBED:
        y.store([row, col], tile.to(y.dtype))
    else:
        rows = row + tl.arange(0, tile.shape[0])
        cols = col + tl.arange(0, tile.shape[1])
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        at = rows[:, None].to(tl.int64) * n + cols[None, :]
        tl.store(y_ptr + at, tile.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(acc, scale_a_ptr, scale_b_ptr):
    if scale_a_ptr is not None and scale_b_ptr is not None:
        acc *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
    elif scale_a_ptr is not None:
        acc *= tl.load(scale_a_ptr)
    elif scale_b_ptr is not None:
        acc *= tl.load(scale_b_ptr)
    return acc


@triton.jit
def _matmul_descriptors(
    a,
    b,
    y,
    y_ptr,
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    A_ALONG_K: tl.constexpr,  # a is described as [m, k], else as its transpose; b likewise as [n, k], or as [k, n]
    B_ALONG_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    HALVES: tl.constexpr,
    DESCRIBED: tl.constexpr,  # y is stored through its descriptor, else by pointers
    FLATTEN: tl.constexpr,
    STAGES: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    blocks = tl.cdiv(k, BLOCK_K)
    for item in tl.range(tl.program_id(0), tiles * SPLIT_K, tl.num_programs(0), flatten=FLATTEN):
        row, col = _place(item % tiles, tiles_m, tiles_n, GROUP_M)
        part = item // tiles
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in tl.range(part * blocks // SPLIT_K, (part + 1) * blocks // SPLIT_K, num_stages=STAGES):
            if A_ALONG_K:
                a_tile = a.load([row * BLOCK_M, block * BLOCK_K])
            else:
                a_tile = a.load([block * BLOCK_K, row * BLOCK_M]).T
            if B_ALONG_K:
                b_tile = b.load([col * BLOCK_N, block * BLOCK_K]).T
            else:
                b_tile = b.load([block * BLOCK_K, col * BLOCK_N])
            acc = tl.dot(a_tile, b_tile, acc, input_precision="tf32")  # float32 comes here only if it may be rounded
        acc = _scaled(acc, scale_a_ptr, scale_b_ptr)
        # Part sums lie one below the other, each padded to whole tiles.
        top = (part * tiles_m + row) * BLOCK_M
        bottom = m if SPLIT_K == 1 else SPLIT_K * tiles_m * BLOCK_M
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
            _store(y, y_ptr, bottom, n, top, col * BLOCK_N, left, DESCRIBED)
            _store(y, y_ptr, bottom, n, top, col * BLOCK_N + BLOCK_N // 2, right, DESCRIBED)
        else:
            _store(y, y_ptr, bottom, n, top, col * BLOCK_N, acc, DESCRIBED)


@triton.jit
def _matmul_skinny(
    wide,
    narrow,
    y_ptr,
    scale_a_ptr,
    scale_b_ptr,
    rows,
    cols,
    k,
    stride_row,
    stride_col,
    WIDE_ALONG_K: tl.constexpr,
    NARROW_ALONG_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,  # of the narrow operand
    BLOCK_COLS: tl.constexpr,  # of the wide one
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile = tl.program_id(0) // SPLIT_K
    part = tl.program_id(0) % SPLIT_K
    blocks = tl.cdiv(k, BLOCK_K)
    acc = tl.zeros((BLOCK_COLS, BLOCK_ROWS), tl.float32)
    for block in tl.range(part * blocks // SPLIT_K, (part + 1) * blocks // SPLIT_K, num_stages=STAGES):
        if WIDE_ALONG_K:
            wide_tile = wide.load([tile * BLOCK_COLS, block * BLOCK_K])
        else:
            wide_tile = wide.load([block * BLOCK_K, tile * BLOCK_COLS]).T
        if NARROW_ALONG_K:
            narrow_tile = narrow.load([0, block * BLOCK_K]).T
        else:
            narrow_tile = narrow.load([block * BLOCK_K, 0])
        acc = tl.dot(wide_tile, narrow_tile, acc, input_precision="tf32")
    acc = _scaled(acc, scale_a_ptr, scale_b_ptr)
    col = tile * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    row = tl.arange(0, BLOCK_ROWS)
    inside = (col < cols)[:, None] & (row < rows)[None, :]
    at = col[:, None].to(tl.int64) * stride_col + row[None, :].to(tl.int64) * stride_row
    y_ptr += part.to(tl.int64) * rows * cols
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sum_parts(parts_ptr, y_ptr, count, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    # Always in the same order, so that the same product has the same bits.
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(PARTS):
        total += tl.load(parts_ptr + index, mask=inside)
        parts_ptr += stride
    tl.store(y_ptr + index, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _matmul_pointers(
    a_ptr,
    b_ptr,
    y_ptr,
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    ACCUMULATE: tl.constexpr,  # the type that sums are kept in
    PRECISION: tl.constexpr,  # "tf32" or "ieee", of float32 products
    EVEN_K: tl.constexpr,  # k is a multiple of BLOCK_K: no mask along it
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    STAGES: tl.constexpr,
):
    row, col = _place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = col * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    in_m = (rows < m)[:, None]
    in_n = (cols < n)[None, :]
    # int64, because int32 offsets wrap past 2**31 elements.
    step = tl.full((), BLOCK_K, tl.int64)
    a_at = a_ptr + rows[:, None].to(tl.int64) * stride_am + ks[None, :].to(tl.int64) * stride_ak
    b_at = b_ptr + ks[:, None].to(tl.int64) * stride_bk + cols[None, :].to(tl.int64) * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATE)
    for block in tl.range(tl.cdiv(k, BLOCK_K), num_stages=STAGES):
        if EVEN_K:
            a_tile = tl.load(a_at, mask=in_m, other=0.0)
            b_tile = tl.load(b_at, mask=in_n, other=0.0)
        else:
            in_k = ks < k - block * BLOCK_K
            a_tile = tl.load(a_at, mask=in_m & in_k[None, :], other=0.0)
            b_tile = tl.load(b_at, mask=in_n & in_k[:, None], other=0.0)
        acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)
        a_at += step * stride_ak
        b_at += step * stride_bk
    acc = _scaled(acc, scale_a_ptr, scale_b_ptr)
    y_at = y_ptr + rows[:, None].to(tl.int64) * n + cols[None, :]
    tl.store(y_at, acc.to(y_ptr.dtype.element_ty), mask=in_m & in_n)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor [rows, k], or its transpose, in the order in which a descriptor can read it."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    along_k: bool  # the rows of what is described run along k

    def tiles(self, block_rows: int, block_k: int) -> TensorDescriptor:
        block = [block_rows, block_k] if self.along_k else [block_k, block_rows]
        return TensorDescriptor(self.base, self.shape, self.strides, block)


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``, at any sizes, strides and alignment.

    float32 is multiplied as float32 unless ``torch.backends.cuda.matmul.allow_tf32`` says otherwise; float8 is summed
    in the tensor cores' own accumulators, as cuBLAS does with ``use_fast_accum=True``.

    Raises:
        Unsupported: not on a GPU and Triton's interpreter is off, or on one that is too old for the type.
        ValueError: the shapes or types do not make a product.

    """
    require_gpu(a)
    _check(a, b)
    m, k, n = *a.shape, b.shape[1]
    y = torch.empty(m, n, dtype=torch.bfloat16 if a.dtype == torch.float8_e4m3fn else a.dtype, device=a.device)
    if y.numel() == 0 or k == 0:
        return y.zero_()
    capability, multiprocessors = _machine(a.device)
    dtype = str(a.dtype).removeprefix("torch.")
    if capability < ((8, 9) if dtype == "float8_e4m3fn" else (8, 0)):
        raise Unsupported(f"{dtype} products need a GPU newer than compute capability {capability[0]}.{capability[1]}")
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    how = configuration(m, n, k, dtype, capability=capability, multiprocessors=multiprocessors, tf32=tf32)
    run(how, a, b, y, scale_a, scale_b, tf32=tf32)
    return y


def chosen() -> str:
    """The configuration of the last product in words; empty before the first."""
    return str(_last or "")


_last: Configuration | None = None


def run(
    how: Configuration,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    tf32: bool = False,
) -> None:
    """y = a @ b as ``how`` says; by pointers after all where descriptors would need a copy that is not worth it."""
    global _last
    with torch.cuda.device_of(a):  # Triton launches on the current device, wherever the tensors may be
        if how.kernel != "pointers":
            along_k = a.dtype.itemsize != 2  # other types are multiplied only if their tiles lie so in shared memory
            left, right = _operand(a, along_k), _operand(b.t(), along_k)
            if left and right or a.numel() * b.shape[1] >= WORTH_A_COPY:
                left, right = left or _copied(a, along_k), right or _copied(b.t(), along_k)
                launch = _by_descriptors if how.kernel == "descriptors" else _skinny
                launch(how, left, right, y, scale_a, scale_b)
                _last = how
                return
            how = pointers(*y.shape, str(a.dtype).removeprefix("torch."), tf32=tf32)
        _by_pointers(how, a, b, y, scale_a, scale_b, "tf32" if tf32 else "ieee")
        _last = how


def _check(a: Tensor, b: Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} make no product: give [m, k] and [k, n]")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(f"a is {a.dtype} on {a.device}, b {b.dtype} on {b.device}: give both of one type, in one place")


@cache
def _machine(device: torch.device) -> tuple[tuple[int, int], int]:
    """Compute capability and multiprocessors."""
    if device.type == "cpu":
        return INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count


def _operand(x: Tensor, along_k: bool) -> _Operand | None:
    """``x`` [rows, k] as a descriptor can read it where it lies; None if it cannot."""
    if strides := _strides(x):
        return _Operand(x, list(x.shape), strides, along_k=True)
    if not along_k and (strides := _strides(x.t())):
        return _Operand(x, [x.shape[1], x.shape[0]], strides, along_k=False)
    return None


def _strides(x: Tensor) -> list[int] | None:
    """Of ``x``, if a descriptor can have them; along a dimension of 1 any stride will do."""
    rows, cols = x.shape
    unit = ALIGNED // x.itemsize
    down = x.stride(0) if rows > 1 else unit * triton.cdiv(cols, unit)
    dense = (cols == 1 or x.stride(1) == 1) and down >= cols
    return [down, 1] if dense and down % unit == 0 and x.data_ptr() % ALIGNED == 0 else None


def _copied(x: Tensor, along_k: bool) -> _Operand:
    """A copy of ``x`` [rows, k] that a descriptor can read, in the order that ``x`` has, if that will do."""
    if not along_k and x.stride(0) < x.stride(1):
        flipped = _copied(x.t(), along_k=True)
        return replace(flipped, along_k=False)
    unit = ALIGNED // x.itemsize
    rows, cols = x.shape
    padded = torch.empty(rows, unit * triton.cdiv(cols, unit), dtype=x.dtype, device=x.device)
    padded[:, :cols].copy_(x)
    return _Operand(padded, [rows, cols], [padded.stride(0), 1], along_k=True)


def _by_descriptors(
    how: Configuration, a: _Operand, b: _Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    (m, n), k = y.shape, a.shape[1 if a.along_k else 0]
    tiles_m, tiles_n = triton.cdiv(m, how.block_m), triton.cdiv(n, how.block_n)
    whole = y
    if how.split_k > 1:
        whole = torch.empty(how.split_k * tiles_m * how.block_m, n, dtype=torch.float32, device=y.device)
    strides = _strides(whole)
    width = how.block_n // 2 if how.halves else how.block_n
    stored = TensorDescriptor(whole, list(whole.shape), strides, [how.block_m, width]) if strides else None
    programs = tiles_m * tiles_n * how.split_k
    _matmul_descriptors[(min(programs, _machine(y.device)[1]),)](
        a.tiles(how.block_m, how.block_k),
        b.tiles(how.block_n, how.block_k),
        stored,
        whole,
        scale_a,
        scale_b,
        m,
        n,
        k,
        A_ALONG_K=a.along_k,
        B_ALONG_K=b.along_k,
        BLOCK_M=how.block_m,
        BLOCK_N=how.block_n,
        BLOCK_K=how.block_k,
        GROUP_M=how.group_m,
        SPLIT_K=how.split_k,
        HALVES=how.halves,
        DESCRIBED=stored is not None,
        FLATTEN=True,
        STAGES=how.stages,
        num_warps=how.warps,
        num_stages=how.stages,
    )
    if how.split_k > 1:
        _add_up(whole, y, tiles_m * how.block_m * n, how.split_k)


def _skinny(
    how: Configuration, a: _Operand, b: _Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    k = a.shape[1 if a.along_k else 0]
    out = y if how.split_k == 1 else torch.empty(how.split_k, *y.shape, dtype=torch.float32, device=y.device)
    upright = y.shape[0] <= y.shape[1]
    narrow, wide = (a, b) if upright else (b, a)
    rows, cols = y.shape if upright else y.t().shape
    strides = y.stride() if upright else y.t().stride()
    _matmul_skinny[(triton.cdiv(cols, how.block_n) * how.split_k,)](
        wide.tiles(how.block_n, how.block_k),
        narrow.tiles(how.block_m, how.block_k),
        out,
        scale_a,
        scale_b,
        rows,
        cols,
        k,
        *strides,
        WIDE_ALONG_K=wide.along_k,
        NARROW_ALONG_K=narrow.along_k,
        BLOCK_ROWS=how.block_m,
        BLOCK_COLS=how.block_n,
        BLOCK_K=how.block_k,
        SPLIT_K=how.split_k,
        STAGES=how.stages,
        num_warps=how.warps,
        num_stages=how.stages,
    )
    if how.split_k > 1:
        _add_up(out, y, y.numel(), how.split_k)


def _add_up(parts: Tensor, y: Tensor, stride: int, count: int) -> None:
    grid = (triton.cdiv(y.numel(), SUM_BLOCK),)
    _sum_parts[grid](parts, y, y.numel(), stride, PARTS=count, BLOCK=SUM_BLOCK, num_warps=4)


def _by_pointers(
    how: Configuration,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    precision: str,
) -> None:
    (m, n), k = y.shape, a.shape[1]
    _matmul_pointers[(triton.cdiv(m, how.block_m) * triton.cdiv(n, how.block_n),)](
        a,
        b,
        y,
        scale_a,
        scale_b,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        ACCUMULATE=tl.float64 if a.dtype == torch.float64 else tl.float32,
        PRECISION=precision,
        EVEN_K=k % how.block_k == 0,
        BLOCK_M=how.block_m,
        BLOCK_N=how.block_n,
        BLOCK_K=how.block_k,
        GROUP_M=how.group_m,
        STAGES=how.stages,
        num_warps=how.warps,
        num_stages=how.stages,
    )
