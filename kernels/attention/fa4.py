"""Attention of the package flash-attn-4 (https://github.com/Dao-AILab/flash-attention), in NVIDIA's CuTe DSL."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_cuda
from ._operands import require_attention

with needs("flash-attn-4", extra="fa4"):
    from flash_attn.cute import flash_attn_func


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``. The first call of a shape compiles.

    Raises:
        Unsupported: the tensors are float32, or not on a GPU of compute capability 9.0 or later.

    """
    require_cuda(q, "flash-attn-4")
    require_attention(q, k, v, causal)
    if q.dtype == torch.float32:
        raise Unsupported("kernels of flash-attn-4 take float16 and bfloat16, not float32")
    if torch.cuda.get_device_capability(q.device)[0] < 9:
        raise Unsupported("kernels of flash-attn-4 need a GPU of compute capability 9.0 or later")
    result = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    y: Tensor = result[0] if isinstance(result, tuple) else result
    return y.transpose(1, 2)
