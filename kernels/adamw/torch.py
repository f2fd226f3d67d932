"""AdamW of PyTorch as ``torch.optim.AdamW`` computes it by default on a GPU: each operation on the whole list at once.

``torch._foreach_mul_`` and its like take lists of tensors. Each launches a kernel for about a hundred tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._formula import factors, lists


def adamw(*tensors: Tensor, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
    """Update parameters and moments in place; shapes and dtypes as in ``kernels.adamw``."""
    params, grads, firsts, seconds = lists(tensors)
    keep, first, second, root, rate = factors(step, lr, beta1, beta2, weight_decay)
    if any(g.dtype != m.dtype for g, m in zip(grads, firsts, strict=True)):
        grads = [g.to(m.dtype) for g, m in zip(grads, firsts, strict=True)]
    torch._foreach_mul_(params, keep)
    torch._foreach_lerp_(firsts, grads, first)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, second)
    denominators = torch._foreach_sqrt(seconds)
    torch._foreach_div_(denominators, root)
    torch._foreach_add_(denominators, eps)
    torch._foreach_addcdiv_(params, firsts, denominators, -rate)
