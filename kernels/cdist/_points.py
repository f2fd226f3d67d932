"""Check that two sets of points have distances."""

from __future__ import annotations

from torch import Tensor


def require_points(a: Tensor, b: Tensor, p: int) -> None:
    """Raise ValueError unless ``a`` is [n, d], ``b`` [m, d] of the same dtype and device, and ``p`` is 2."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} are not [n, d] and [m, d]: give one d")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(f"a is {a.dtype} on {a.device}, b {b.dtype} on {b.device}: give one dtype on one device")
    if p != 2:
        raise ValueError(f"p={p}: 2 is the only norm")
