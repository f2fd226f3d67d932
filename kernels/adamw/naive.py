"""AdamW from elementary operations, one parameter after the other: a dozen kernels for each."""

from __future__ import annotations

from torch import Tensor

from ._formula import factors, lists


def adamw(*tensors: Tensor, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
    """Update parameters and moments in place; shapes and dtypes as in ``kernels.adamw``."""
    keep, first, second, root, rate = factors(step, lr, beta1, beta2, weight_decay)
    for p, gradient, m, v in zip(*lists(tensors), strict=True):
        g = gradient.to(m.dtype)
        m.copy_(beta1 * m + first * g)
        v.copy_(beta2 * v + second * g * g)
        p.copy_(keep * p - rate * m / (v.sqrt() / root + eps))
