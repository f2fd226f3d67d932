"""AdamW in Triton: one kernel for the whole list. Bound by memory: reads four numbers and writes three.

A kernel has no list of pointers as an argument, so a table in the GPU's memory has the addresses. The table is made
when a list is seen for the first time, and kept. A program finds its tensor by comparing its number with the first
block of every tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import require_floats, require_gpu
from ..triton_launch import repeatable
from ._formula import factors, lists

BLOCK = 1024  # elements of a program
WARPS = 4  # of a program
TENSORS = 1024  # parameters of a launch, at most: each program looks at all of them
KEPT = 64  # tables
ALIGNED = tl.constexpr(16)  # bytes of an access
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Launch(NamedTuple):
    """Parameters of one launch, all of the same dtypes."""

    table: Tensor  # int64 [6, count]: first block, addresses of p, g, m and v, elements
    parameters: int
    blocks: int
    dtypes: tuple[torch.dtype, ...]  # of p, g and m


@triton.jit
def _adamw(
    table_ptr, count,
    keep: tl.float64, beta1: tl.float64, first: tl.float64, beta2: tl.float64, second: tl.float64, root: tl.float64,
    eps: tl.float64, rate: tl.float64,
    P: tl.constexpr, G: tl.constexpr, M: tl.constexpr, ARITHMETIC: tl.constexpr, COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, COUNT)
    firsts = tl.load(table_ptr + each, mask=each < count, other=2**62)
    entry = table_ptr + tl.sum((firsts <= block).to(tl.int32)) - 1
    start = (block - tl.load(entry)) * BLOCK
    p, g = tl.load(entry + count), tl.load(entry + 2 * count)
    m, v = tl.load(entry + 3 * count), tl.load(entry + 4 * count)
    elements = tl.load(entry + 5 * count)
    p_ptr, g_ptr = p.to(tl.pointer_type(P)), g.to(tl.pointer_type(G))
    m_ptr, v_ptr = m.to(tl.pointer_type(M)), v.to(tl.pointer_type(M))
    index = start + tl.arange(0, BLOCK)
    keep, rate = tl.full([], keep, ARITHMETIC), tl.full([], rate, ARITHMETIC)
    beta1, first = tl.full([], beta1, ARITHMETIC), tl.full([], first, ARITHMETIC)
    beta2, second = tl.full([], beta2, ARITHMETIC), tl.full([], second, ARITHMETIC)
    root, eps = tl.full([], root, ARITHMETIC), tl.full([], eps, ARITHMETIC)
    if ((p | g | m | v) % ALIGNED == 0) & (start + BLOCK <= elements):
        # Only here the compiler knows the alignment, and makes accesses of 16 bytes.
        p_ptr, g_ptr = tl.multiple_of(p_ptr, ALIGNED), tl.multiple_of(g_ptr, ALIGNED)
        m_ptr, v_ptr = tl.multiple_of(m_ptr, ALIGNED), tl.multiple_of(v_ptr, ALIGNED)
        index = tl.max_contiguous(tl.multiple_of(index, BLOCK), BLOCK)
        _update(p_ptr + index, g_ptr + index, m_ptr + index, v_ptr + index, None,
                keep, beta1, first, beta2, second, root, eps, rate, ARITHMETIC)  # fmt: skip
    else:
        _update(p_ptr + index, g_ptr + index, m_ptr + index, v_ptr + index, index < elements,
                keep, beta1, first, beta2, second, root, eps, rate, ARITHMETIC)  # fmt: skip


@triton.jit
def _update(
    p_ptr, g_ptr, m_ptr, v_ptr, inside, keep, beta1, first, beta2, second, root, eps, rate, ARITHMETIC: tl.constexpr
):
    g, m = tl.load(g_ptr, mask=inside).to(ARITHMETIC), tl.load(m_ptr, mask=inside).to(ARITHMETIC)
    v, p = tl.load(v_ptr, mask=inside).to(ARITHMETIC), tl.load(p_ptr, mask=inside).to(ARITHMETIC)
    m = beta1 * m + first * g
    v = beta2 * v + second * g * g
    p = p * keep - rate * m / (tl.sqrt(v) / root + eps)
    tl.store(m_ptr, m.to(m_ptr.dtype.element_ty), mask=inside)
    tl.store(v_ptr, v.to(v_ptr.dtype.element_ty), mask=inside)
    tl.store(p_ptr, p.to(p_ptr.dtype.element_ty), mask=inside)


def adamw(
    *tensors: Tensor,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    BLOCK: int = BLOCK,
    num_warps: int = WARPS,
) -> None:
    """Update parameters and moments in place; shapes and dtypes as in ``kernels.adamw``.

    The tensors of a parameter may lie in memory in any way. If they do not lie alike without gaps, copies are updated.

    Raises:
        Unsupported: a tensor is not on a GPU and Triton's interpreter is off, or is not of floating-point numbers.
        ValueError: the tensors of a parameter differ in shape.

    """
    if not tensors:
        return
    key = (BLOCK, *map(Tensor.data_ptr, tensors), *(x.shape for x in tensors), *(x.dtype for x in tensors))
    if not all(map(Tensor.is_contiguous, tensors)):
        key += tuple(x.stride() for x in tensors)
    if capturing := tensors[0].is_cuda:
        key += (torch._C._cuda_getCurrentRawStream(tensors[0].device.index),)
        capturing = torch.cuda.is_current_stream_capturing()
    if (launches := _kept.get(key) or _captured.get(key)) is None:
        dense = _dense(tensors)
        if any(x is not y for x, y in zip(tensors, dense, strict=True)):
            adamw(
                *dense, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
                BLOCK=BLOCK, num_warps=num_warps,
            )  # fmt: skip
            count = len(tensors) // 4
            for place, (x, y) in enumerate(zip(tensors, dense, strict=True)):
                if x is not y and not count <= place < 2 * count:  # gradients do not change, and may be expanded
                    x.copy_(y)
            return
        while len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        launches = _kept[key] = _launches(tensors, BLOCK)
    if capturing:
        _captured[key] = launches
    keep, first, second, root, rate = factors(step, lr, beta1, beta2, weight_decay)
    for launch in launches:
        wide = tl.float64 if torch.float64 in launch.dtypes else tl.float32
        p, g, m = (getattr(tl, str(dtype).removeprefix("torch.")) for dtype in launch.dtypes)
        repeatable(_adamw)[(launch.blocks,)](
            launch.table, launch.parameters, keep, beta1, first, beta2, second, root, eps, rate,
            P=p, G=g, M=m, ARITHMETIC=wide, COUNT=triton.next_power_of_2(launch.parameters), BLOCK=BLOCK,
            num_warps=num_warps,
        )  # fmt: skip


_kept: dict[Any, list[Launch]] = {}
# By graphs, which do not report their end. A list that is captured again has its table already: 48 bytes a parameter.
_captured: dict[Any, list[Launch]] = {}


def _launches(tensors: Sequence[Tensor], block: int) -> list[Launch]:
    """Return the launches for dense ``tensors``: one for each combination of dtypes, and for ``TENSORS`` parameters."""
    groups: dict[tuple[torch.dtype, ...], list[tuple[Tensor, ...]]] = {}
    for parameter in zip(*lists(tensors), strict=True):
        p, g, m, v = parameter
        for x in parameter:
            require_gpu(x)
            require_floats(x)
            if x.shape != p.shape or x.device != tensors[0].device or (x is v and v.dtype != m.dtype):
                raise ValueError(
                    f"a parameter {_brief(p)} has a gradient {_brief(g)} and moments {_brief(m)}, {_brief(v)}"
                )
        if p.numel():
            groups.setdefault((p.dtype, g.dtype, m.dtype), []).append(parameter)
    launches = []
    for dtypes, members in groups.items():
        for start in range(0, len(members), TENSORS):
            part = members[start : start + TENSORS]
            sizes = [parameter[0].numel() for parameter in part]
            *firsts, blocks = accumulate((-(-size // block) for size in sizes), initial=0)
            addresses = [[parameter[at].data_ptr() for parameter in part] for at in range(4)]
            table = torch.tensor([firsts, *addresses, sizes], dtype=torch.int64)
            launches.append(Launch(_uploaded(table, tensors[0].device), len(part), blocks, dtypes))
    return launches


def _brief(x: Tensor) -> str:
    return f"{[*x.shape]} {str(x.dtype).removeprefix('torch.')} on {x.device}"


def _dense(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return ``tensors``; those of a parameter are contiguous unless they lie alike in memory, without gaps."""
    dense = list(tensors)
    count = len(tensors) // 4
    for place in range(count):
        four = tensors[place::count]
        p = four[0]
        if any(step == 0 and size > 1 for x in (p, *four[2:]) for size, step in zip(x.shape, x.stride(), strict=True)):
            raise ValueError(f"a parameter {_brief(p)} or a moment of it is expanded: it cannot change in place")
        alike = all(x.stride() == p.stride() for x in four)
        if alike and torch.empty_like(p, device="meta").stride() == p.stride():
            continue
        dense[place::count] = [x.contiguous() for x in four]
    return dense


def _uploaded(table: Tensor, device: torch.device) -> Tensor:
    """Return ``table`` on ``device``, for launches on the current stream. A capture does not capture the upload."""
    if device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
        return table.to(device, non_blocking=True)
    mode = ctypes.c_int(RELAXED)  # a capture forbids its thread to wait for another stream, which is safe here
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))
    try:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            return table.to(device)
    finally:
        exchange(ctypes.byref(mode))
