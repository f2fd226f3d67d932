"""What two operands have to have in common to be multiplied."""

from __future__ import annotations

from torch import Tensor


def require_product(a: Tensor, b: Tensor) -> None:
    """Raises ValueError if they make no product."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} make no product: give [m, k] and [k, n]")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(f"a is {a.dtype} on {a.device}, b {b.dtype} on {b.device}: give one type, in one place")
