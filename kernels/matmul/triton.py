"""Matrix product in Triton: four kernels, chosen by ``_configurations``.

    roles         Hopper, 8 and 16 bits, about one tile of y for each multiprocessor, or more. Where sums are long and
                  few tiles are left for the last wave, all multiprocessors share those. One warp loads, two warpgroups
                  multiply, and y is stored during the next tile. Triton's compiler does not do that by itself, so this
                  kernel is in Gluon, Triton's lower-level language
    descriptors   Hopper. The tensor memory accelerator loads tiles, and warpgroup instructions (wgmma) multiply them.
                  A program computes several tiles, so that loads of the next tile overlap with the store of this one
    skinny        Hopper, at most 64 rows or columns. The wide operand is the one for which the instruction needs at
                  least 64 rows, y^T = b^T a^T, and is read once, at the speed of memory
    pointers      any GPU, stride and alignment. Tiles are loaded by cp.async if rows begin at multiples of 4 bytes,
                  else through registers, one step ahead

On Hopper, descriptors cannot read an operand whose base or stride is not a multiple of 16 bytes, or in tf32 and float8
one whose rows do not run along k. It is copied first if the product is large: the copy is O(n^2), the product O(n^3).
So is one whose rows run across k and do not begin at multiples of 128 bytes, since each row of a tile then lies in two
lines of the L2 cache. A short product starts before the kernel that copies has ended, which saves 0.6 us (programmatic
dependent launch). A long one that is not skinny would lose: two programs may take the same multiprocessor, which is
free first, while others have none.

float32 without tf32 is computed as "tf32x3" by the kernel "pointers": each factor is split into two numbers of 11 bits,
x = big + small, and tensor cores compute the three products big big + big small + small big. They truncate sums, so
they add only the terms of one step; float32 arithmetic adds the steps. For more than FEW_TERMS terms, the largest
error is smaller than that of float32 arithmetic. The exception are factors below 2^-115, whose small part is a
subnormal of tf32: they are known to 2^-136. A tile of y with infinity or NaN is computed again by float32 arithmetic.
Operands whose rows are not aligned are padded first where that pays, since loads of 4 bytes take three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..padding import ALIGNED, padded, supports_early_start
from ..stream_memory import counters
from ..tensor_cores import float32_setting, has_roles
from ..triton_device import require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable, unchanged
from ..unsupported import Unsupported
from ._configurations import (
    ITEMSIZE,
    LEAST_LOAD,
    LONGEST,
    NARROW_LOAD,
    Configuration,
    Load,
    Loads,
    Precision,
    configuration,
    copy_pays,
    pointers,
)
from ._operands import Operand, crossed, described, in_place, load_unit, readable, store_unit, whole_loads
from ._product import require_product
from ._triton_kernels import matmul_descriptors, matmul_pointers, matmul_skinny

FEW_TERMS = 32  # sums of up to this many terms are computed in float32 arithmetic, which rounds them less
INTERPRETED = ((9, 0), 132)  # the interpreter counts as this GPU, so that the kernels for Hopper are checked

FEW_ROWS = 16  # up to this many rows of the narrow operand, it is 2 % faster if tiles begin at different places along k


@planned
def matmul(
    a: Tensor,
    b: Tensor,
    *,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out: Tensor | None = None,
    precision: Precision | None = None,
    BLOCK_M: int | None = None,
    BLOCK_N: int | None = None,
    BLOCK_K: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> Tensor:
    """Compute a @ b; shapes and dtypes as in ``kernels.matmul``. Any sizes, strides and alignment are accepted.

    float32 is multiplied with the accuracy of float32 unless torch's setting for products on CUDA allows tf32. float8
    is summed in the accumulators of the tensor cores, as by cuBLAS with ``use_fast_accum=True``.

    Args:
        a: a matrix [m, k].
        b: a matrix [k, n].
        scale_a: factor of a, float32 [], for float8.
        scale_b: factor of b, likewise.
        out: where to write the result; it must be contiguous.
        precision: of float32: "ieee" for float32 arithmetic, "tf32x3" for three products of tf32, which are as accurate
            and faster, or "tf32". None: "tf32" if torch allows it, else "tf32x3", but "ieee" for few terms.
        BLOCK_M: rows of a tile of y, a power of 2. None, as for the next four: chosen by ``_configurations``. If one of
            the five is given, it replaces the chosen one, and the kernel "roles", whose tile is fixed, is not used.
        BLOCK_N: columns of a tile of y, a power of 2.
        BLOCK_K: terms of a sum in a step, a power of 2.
        num_warps: warps of a program, a power of 2.
        num_stages: steps in flight, the current one included.

    Raises:
        Unsupported: ``a`` is not on a GPU and Triton's interpreter is off, or the GPU is too old for the dtype, or the
            dtype is another one.
        ValueError: the shapes, dtypes or devices do not match, ``out`` does not fit the result, or ``precision`` is
            another word.

    """
    require_gpu(a)
    require_products()
    require_product(a, b)
    m, k, n = *a.shape, b.shape[1]
    kind = torch.bfloat16 if a.dtype == torch.float8_e4m3fn else a.dtype
    y = each_time(torch.empty, m, n, dtype=kind, device=a.device) if out is None else out
    if y.shape != (m, n) or y.dtype != kind or y.device != a.device or not y.is_contiguous():
        raise ValueError(f"out is not a contiguous [{m}, {n}] of {kind} on {a.device}")
    if y.numel() == 0 or k == 0:
        return y.zero_()
    capability, multiprocessors = _machine(a.device)
    dtype = str(a.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        raise Unsupported(f"matmul in Triton takes {', '.join(ITEMSIZE)}; convert a and b from {dtype}")
    if capability < ((8, 9) if dtype == "float8_e4m3fn" else (8, 0)):
        raise Unsupported(f"{dtype} products need a GPU newer than compute capability {capability[0]}.{capability[1]}")
    if precision not in (None, "ieee", "tf32x3", "tf32"):
        raise ValueError(f"precision={precision}: give ieee, tf32x3 or tf32")
    if a.dtype != torch.float32:
        precision = "ieee"
    elif precision is None:
        precision = "tf32" if unchanged(float32_setting) == "tf32" else "ieee" if k <= FEW_TERMS else "tf32x3"
    given = _given(BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages)
    across, roles = (crossed(a, _along_k(a)), crossed(b.t(), _along_k(a))), not given and has_roles(a)
    known = partial(configuration, capability=capability, multiprocessors=multiprocessors, roles=roles, crossed=across)
    how = known(m, n, k, dtype, precision=precision)
    if how.kernel == "pointers":
        how = _general(a, b, loads_of(a, b), precision)
    how = _replaced(affordable(how, a, b, precision), given)
    launch(how, a, b, y, scale_a, scale_b, precision=precision)
    return y


def _replaced(how: Configuration, given: Mapping[str, int]) -> Configuration:
    """Return ``how`` with the fields that the caller has given."""
    if how.kernel == "skinny" and given.get("block_m", how.block_m) < how.block_m:
        raise Unsupported(f"BLOCK_M: one tile holds all rows of this narrow operand; give {how.block_m} or more")
    return replace(how, **given) if given else how  # type: ignore[arg-type]  # mypy takes a value for any of the fields


def _given(*values: int | None) -> dict[str, int]:
    """Return the fields of a configuration that the caller has given."""
    if not any(values):
        return {}
    names = ("block_m", "block_n", "block_k", "warps", "stages")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def chosen() -> str:
    """Return a description of the last product's configuration; empty before the first product."""
    return ", ".join(map(str, _last))


_last: list[Configuration | str] = []  # formatted only on request, since that takes as long as a launch


def launch(
    how: Configuration,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    precision: Precision = "ieee",
) -> None:
    """Write a @ b into ``y`` with the configuration ``how``. Copy an operand if its kernel cannot read it."""
    notes: list[str] = [precision] if a.dtype == torch.float32 else []
    if how.kernel == "pointers":
        _by_pointers(how, a, b, y, scale_a, scale_b, precision)
    else:
        operands = readable(a, b.t(), _along_k(a), how.lined)
        notes += [f"{name} copied" for name, operand in zip("ab", operands, strict=True) if operand.copied]
        _LAUNCH[how.kernel](how, *operands, y, scale_a, scale_b)
    each_time(_remember, how, *notes)


def _remember(*words: Configuration | str) -> None:
    _last[:] = words


def _along_k(a: Tensor) -> bool:
    """Return whether the rows of tiles must run along k: tensor cores take only 16-bit types in any order."""
    return a.dtype.itemsize != 2


def _in_place(a: Tensor, b: Tensor) -> tuple[Operand | None, Operand | None]:
    return in_place(a, _along_k(a)), in_place(b.t(), _along_k(a))


def affordable(how: Configuration, a: Tensor, b: Tensor, precision: Precision = "ieee") -> Configuration:
    """Return ``how``, or the kernel "pointers" if descriptors need copies that cost more than they save."""
    if how.kernel == "pointers":
        return how
    copies = tuple(x.numel() for x, operand in zip((a, b), _in_place(a, b), strict=True) if operand is None)
    if not copies:
        return how
    dtype, (m, k), n = str(a.dtype).removeprefix("torch."), a.shape, b.shape[1]
    loads = loads_of(a, b)
    if copy_pays(m, n, k, dtype, copied=copies, multiprocessors=_machine(a.device)[1], loads=loads):
        return how
    return _general(a, b, loads, precision)


def _general(a: Tensor, b: Tensor, loads: Loads, precision: Precision) -> Configuration:
    """Return the kernel "pointers" for a @ b, whose elements are loaded as ``loads`` say."""
    (m, k), n = a.shape, b.shape[1]
    capability, multiprocessors = _machine(a.device)
    return pointers(
        m,
        n,
        k,
        str(a.dtype).removeprefix("torch."),
        capability=capability,
        multiprocessors=multiprocessors,
        precision=precision,
        loads=loads,
        copied=tuple(x.numel() for x, load in zip((a, b), loads, strict=True) if load.width < ALIGNED),
    )


def loads_of(a: Tensor, b: Tensor) -> Loads:
    """Return how a thread of the kernel "pointers" loads a and b."""
    (a_along_k, a_unit), (b_along_k, b_unit) = load_unit(a), load_unit(b.t())
    return Load(a_unit * a.itemsize, a_along_k), Load(b_unit * b.itemsize, b_along_k)


def _machine(device: torch.device) -> tuple[tuple[int, int], int]:
    """Return the compute capability and the number of multiprocessors."""
    if device.type == "cpu":
        return INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count


def _by_descriptors(
    how: Configuration, a: Operand, b: Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    (m, n), k = y.shape, a.shape[1 if a.along_k else 0]
    tiles_m, tiles_n = triton.cdiv(m, how.block_m), triton.cdiv(n, how.block_n)
    stored = described(y, [how.block_m, how.block_n // how.pieces])
    programs = tiles_m * tiles_n * how.split_k
    early = _early(how, a, b, y)
    repeatable(matmul_descriptors)[(min(programs, how.programs * _machine(y.device)[1]),)](
        a.tiles(how.block_m, how.block_k),
        b.tiles(how.block_n - how.rest, how.block_k),
        b.tiles(how.rest, how.block_k) if how.rest else None,
        stored,
        y,
        *_sharing(how, tiles_m * tiles_n, y),
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
        PIECES=how.pieces,
        UNIT=store_unit(y),
        STAGES=how.stages,
        EARLY=early,
        launch_pdl=early,
        num_warps=how.warps,
        num_stages=how.stages,
    )


def _skinny(
    how: Configuration, a: Operand, b: Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    k = a.shape[1 if a.along_k else 0]
    upright = y.shape[0] <= y.shape[1]
    narrow, wide = (a, b) if upright else (b, a)
    rows, cols = y.shape if upright else y.t().shape
    strides = y.stride() if upright else y.t().stride()
    tiles = triton.cdiv(cols, how.block_n)
    early = _early(how, a, b, y)
    repeatable(matmul_skinny)[(tiles * how.split_k,)](
        wide.tiles(how.block_n, how.block_k),
        narrow.tiles(how.block_m, how.block_k),
        y,
        *_sharing(how, tiles, y),
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
        ROTATED=wide.along_k and how.block_m <= FEW_ROWS,
        STAGES=how.stages,
        EARLY=early,
        launch_pdl=early,
        num_warps=how.warps,
        num_stages=how.stages,
    )


def _early(how: Configuration, a: Operand, b: Operand, y: Tensor) -> bool:
    """Return whether the product starts before the kernel that copies an operand has ended."""
    return how.early and (a.copied or b.copied) and supports_early_start(y)


def _by_roles(
    how: Configuration, a: Operand, b: Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    from ._roles import by_roles  # needs a Triton that has Gluon for Hopper

    by_roles(how, a, b, y, scale_a, scale_b)


_LAUNCH = {"roles": _by_roles, "descriptors": _by_descriptors, "skinny": _skinny}


def _sharing(how: Configuration, tiles: int, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for the partial sums of ``tiles`` tiles and a counter for each; ``y``, twice, if k is not split."""
    if how.split_k == 1:
        return y, y
    sums = torch.float64 if y.dtype == torch.float64 else torch.float32
    parts = each_time(torch.empty, tiles * how.split_k * how.block_m * how.block_n, dtype=sums, device=y.device)
    return parts, counters(y, tiles)


def _by_pointers(
    how: Configuration,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    precision: Precision,
) -> None:
    target, rows, cols = y, how.block_m, how.block_n
    if how.copies:
        a, b = whole_loads(a, b)
    (a_along_k, a_unit), (b_along_k, b_unit) = (load_unit(x, zeros=how.copies) for x in (a, b.t()))
    # In tf32x3, the parts of the right operand are stored along k for wgmma. To turn a tile around costs more than its
    # product. Those of the left operand stay in registers, and may lie either way. So y^T = b^T a^T if only a fits.
    if precision == "tf32x3" and not a_along_k and not b_along_k:
        if a.numel() <= b.numel():
            (a,) = padded(a)  # along k, and with zeros to whole loads, whatever k is
            a_along_k, a_unit = load_unit(a, zeros=True)
        else:
            b = padded(b.t())[0].t()
            b_along_k, b_unit = load_unit(b.t(), zeros=True)
    if precision == "tf32x3" and a_along_k and not b_along_k:
        a, b, target, scale_a, scale_b = b.t(), a.t(), target.t(), scale_b, scale_a
        rows, cols, a_unit, b_unit, a_along_k, b_along_k = cols, rows, b_unit, a_unit, False, True
    if precision == "tf32x3" and min(a_unit, b_unit) * a.itemsize <= NARROW_LOAD and rows > cols:
        rows, cols = cols, rows
    (m, n), k = target.shape, a.shape[1]
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, cols)
    repeatable(matmul_pointers)[(tiles * how.split_k,)](
        a,
        b,
        target,
        *_sharing(how, tiles, y),
        scale_a,
        scale_b,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        *target.stride(),
        1.0,
        ACCUMULATE=tl.float64 if y.dtype == torch.float64 else tl.float32,
        PRECISION=precision,
        A_ALONG_K=a_along_k,
        B_ALONG_K=b_along_k,
        A_UNIT=a_unit,
        B_UNIT=b_unit,
        A_AHEAD=a_unit * a.itemsize < LEAST_LOAD,
        B_AHEAD=b_unit * b.itemsize < LEAST_LOAD,
        EVEN_K=k % how.block_k == 0,
        LONG=max(m, n, k) > LONGEST,
        BLOCK_M=rows,
        BLOCK_N=cols,
        BLOCK_K=how.block_k,
        GROUP_M=how.group_m,
        SPLIT_K=how.split_k,
        STAGES=how.stages,
        num_warps=how.warps,
        num_stages=how.stages,
    )
