"""AdamW of PyTorch in one kernel for about thirty tensors, as ``torch.optim.AdamW(..., fused=True)`` launches it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..unsupported import Unsupported
from ._formula import lists


def adamw(*tensors: Tensor, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
    """Update parameters and moments in place; shapes and dtypes as in ``kernels.adamw``.

    Raises:
        Unsupported: a moment has another dtype than its parameter.

    """
    params, grads, firsts, seconds = lists(tensors)
    if any(p.dtype != m.dtype for p, m in zip(params, firsts, strict=True)):
        raise Unsupported("torch's fused AdamW takes moments of the parameters' dtype only; use moments=same")
    torch._fused_adamw_(
        params,
        grads,
        firsts,
        seconds,
        [],
        [_on_device(step, params[0].device)] * len(params),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


@lru_cache(maxsize=16)
def _on_device(step: int, device: torch.device) -> Tensor:
    """Return ``step`` as a number on ``device``, where an optimizer keeps it too: filling it would be a kernel."""
    return torch.tensor(float(step), device=device)
