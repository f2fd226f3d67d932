"""Matrix product through the graph API of cuDNN (https://github.com/NVIDIA/cudnn-frontend), by its first heuristic."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda
from ._product import require_product

with needs("nvidia-cudnn-frontend", extra="cudnn"):
    import cudnn

TYPES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16"}


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Compute a @ b, summed in float32; shapes as in ``kernels.matmul``. The first product of a size makes its plan.

    Raises:
        Unsupported: the tensors are not on a GPU, not aligned, or neither float16 nor bfloat16, or cuDNN has no plan.
        ValueError: ``a`` and ``b`` cannot be multiplied.

    """
    require_cuda(a, "cuDNN")
    require_product(a, b)
    if a.dtype not in TYPES:
        raise Unsupported(f"this product of cuDNN takes float16 and bfloat16, not {a.dtype}")
    for x in (a, b):
        require_aligned(x, "cuDNN")
    a, b = a.unsqueeze(0), b.unsqueeze(0)  # cuDNN multiplies batches
    y = torch.empty(1, a.shape[1], b.shape[2], dtype=a.dtype, device=a.device)
    graph, operands, bytes_ = _planned(a.dtype, *_layout(a), *_layout(b), *_layout(y), a.device.index)
    handle = _handle(a.device.index)
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(a.device).cuda_stream)
    workspace = torch.empty(bytes_, dtype=torch.uint8, device=a.device)
    graph.execute(dict(zip(operands, (a, b, y), strict=True)), workspace, handle=handle)
    return y[0]


def _layout(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(x.shape), x.stride()


@cache
def _handle(device: int) -> Any:
    with torch.cuda.device(device):
        return cudnn.create_handle()


@cache
def _planned(
    dtype: torch.dtype,
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    b_shape: tuple[int, ...],
    b_strides: tuple[int, ...],
    y_shape: tuple[int, ...],
    y_strides: tuple[int, ...],
    device: int,
) -> tuple[Any, tuple[Any, Any, Any], int]:
    """Return a graph with a plan, its tensors a, b and y, and the bytes of its workspace. Raises Unsupported."""
    kind = getattr(cudnn.data_type, TYPES[dtype])
    graph = cudnn.pygraph(
        handle=_handle(device),
        io_data_type=kind,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    a = graph.tensor(name="a", dim=list(a_shape), stride=list(a_strides), data_type=kind)
    b = graph.tensor(name="b", dim=list(b_shape), stride=list(b_strides), data_type=kind)
    y = graph.matmul(name="product", A=a, B=b)
    y.set_output(True).set_data_type(kind).set_dim(list(y_shape)).set_stride(list(y_strides))
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        why = str(error).strip().partition("\n")[0]
        raise Unsupported(f"cuDNN {cudnn.backend_version_string()} has no plan for this product: {why}") from error
    return graph, (a, b, y), max(1, graph.get_workspace_size())
