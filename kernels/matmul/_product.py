"""Check that two matrices can be multiplied."""

from __future__ import annotations

from torch import Tensor


def require_product(a: Tensor, b: Tensor) -> None:
    """Raise ValueError unless ``a`` is [m, k] and ``b`` [k, n], of the same dtype and device."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} make no product: give [m, k] and [k, n]")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(f"a is {a.dtype} on {a.device}, b {b.dtype} on {b.device}: give one dtype on one device")
