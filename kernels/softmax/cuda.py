"""Softmax in CUDA C++: each row is read once and written once, by as many blocks as its length needs.

A row that does not fit into the registers of a block goes through those of a cluster of up to 16 blocks, or through a
ring in the shared memory of all multiprocessors (ring.cuh). ``_cuda_plan`` chooses, and lists the rows that are read
twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..launch import each_time, planned
from ..unsupported import CUDA_NEEDS_GPU, Unsupported
from . import _cuda_exchange, _cuda_plan
from ._cuda_plan import VECTOR, Plan, Processor, Rows


@planned
def softmax(x: Tensor, *, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Compute the softmax of each row of ``x``; shapes and dtypes as in ``kernels.softmax``. ``y`` is contiguous.

    Args:
        x: a tensor of any strides.
        variant: "default" is the only one.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``x`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.
        KernelTimeout: an earlier call, on rows of more than 512 KB, did not finish, since its blocks waited too long
            for each other. The output of that call is wrong; this call has not started.

    """
    code = source(__file__, variant)
    require_type("softmax", x, "convert x from")
    processor_of(x.device)  # raises unless it is an NVIDIA GPU
    y = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    flat = x.reshape(-1, x.shape[-1])
    aligned = flat.data_ptr() % VECTOR == 0
    (rows, cols), (stride, column_stride) = flat.shape, flat.stride()
    chosen = _chosen(Rows(x.element_size(), rows, cols, stride, column_stride, aligned), code, build, x.dtype, x.device)

    def launch(name: str, *arguments: int | Tensor) -> None:
        built = kernel(code, name.format(T=TYPES[x.dtype]), build, x.device)
        built(
            chosen.blocks,
            chosen.threads,
            flat,
            y,
            *arguments,
            shared=chosen.shared,
            cluster=chosen.cluster,
            cooperative=chosen.design == "softmax_ring",
        )

    with torch.cuda.device_of(x):
        if chosen.design == "softmax_general":
            launch(chosen.kernel, rows, cols, stride, column_stride)
        elif chosen.design == "softmax_parts":
            # Maximum and sum of each part, in the arithmetic type.
            kind = torch.promote_types(x.dtype, torch.float32)
            runs = each_time(torch.empty, 2 * chosen.blocks, dtype=kind, device=x.device)
            arguments = (cols, stride, column_stride, chosen.slices, chosen.slice, runs)
            launch(chosen.kernel, *arguments)
            launch(chosen.kernel.replace("softmax_parts", "softmax_whole"), *arguments)
        elif chosen.design == "softmax_ring":
            exchanges = _cuda_exchange.exchanges(x.device.index)
            exchanges.raise_if_timed_out()
            memory = exchanges.take(rows * chosen.slices)
            exchange = (chosen.slices, memory, exchanges.flag_address, _cuda_exchange.LIMIT_NS)
            launch(chosen.kernel, *_vectors(chosen, flat), *exchange)
        else:
            launch(chosen.kernel, *_vectors(chosen, flat))
    return y


def _vectors(chosen: Plan, x: Tensor) -> tuple[int, ...]:
    """Return the sizes that follow the pointers in the arguments of a kernel that counts in vectors, but for edges."""
    (rows, cols), width = x.shape, 1 if chosen.edges else VECTOR // x.element_size()
    stride, length = x.stride(0) // width, cols // width
    return (stride, length) if chosen.design == "softmax_cluster" else (rows, stride, length)


def _chosen(x: Rows, code: Path, build: str, dtype: torch.dtype, device: torch.device) -> Plan:
    """Return the fastest plan that the GPU can run. Only the driver knows if clusters of more than 8 blocks fit."""
    processor = processor_of(device)
    chosen = _cuda_plan.plan(x, processor)
    if chosen.cluster <= 8:
        return chosen
    built = kernel(code, chosen.kernel.format(T=TYPES[dtype]), build, device)
    if built.runs_clusters(chosen.cluster, chosen.threads):
        return chosen
    return _cuda_plan.plan(x, replace(processor, cluster=8))


@cache
def processor_of(device: torch.device) -> Processor:
    """Return the properties of ``device`` that the plan depends on. Raises Unsupported if it is not an NVIDIA GPU."""
    if device.type != "cuda" or torch.version.hip:
        raise Unsupported(CUDA_NEEDS_GPU)
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return Processor(10 * properties.major + properties.minor, properties.multi_processor_count, shared)
