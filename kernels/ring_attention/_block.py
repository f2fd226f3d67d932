"""Attention of a block of keys with the logarithm of each query's sum of weights, and the merging of two blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from ..attention._operands import for_each_head
from ..unsupported import Unsupported

Part = tuple[Tensor, Tensor]  # y, and log sum exp of the scores, float32 [batch, heads, length]


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Part:
    """Return attention of ``q`` to the keys of a block, by the backend that scaled_dot_product_attention chooses.

    torch's operators behind that function return the sums of weights too.

    Raises:
        Unsupported: no fused backend takes these tensors.

    """
    if not q.is_cuda or q.dtype == torch.float32:  # backends for these want as many keys as queries
        k, v = (for_each_head(x, q.shape[1]) for x in (k, v))
    aten, grouped = torch.ops.aten, q.shape[1] != k.shape[1]
    backend = SDPBackend(torch._fused_sdp_choice(q, k, v, None, 0.0, causal, enable_gqa=grouped))
    if backend == SDPBackend.FLASH_ATTENTION and not q.is_cuda:
        y, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    elif backend == SDPBackend.FLASH_ATTENTION:
        y, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    elif backend == SDPBackend.CUDNN_ATTENTION:
        y, lse, *_ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    elif backend == SDPBackend.EFFICIENT_ATTENTION:
        y, lse, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
    else:
        raise Unsupported("torch has no fused attention for these tensors; use impl=naive, or d of a multiple of 8")
    return y, lse.flatten(2)[:, :, : q.shape[2]]  # cuDNN's has one more dimension, that of efficient is padded


def merge(y: Tensor, lse: Tensor, block: Part) -> None:
    """Add the keys of ``block`` to attention ``y``, float32, and to ``lse``, which is finite."""
    of_block, lse_of_block = block
    gap = lse - lse_of_block
    y.lerp_(of_block.float(), torch.sigmoid(-gap)[..., None])  # the block's share of all weights
    lse.sub_(F.logsigmoid(gap))  # log(exp(lse) + exp(lse_of_block))
