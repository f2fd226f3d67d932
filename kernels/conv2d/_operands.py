"""Check that filters fit images."""

from __future__ import annotations

from torch import Tensor


def require_operands(x: Tensor, w: Tensor, groups: int = 1) -> None:
    """Raise ValueError unless the filters ``w`` fit the images ``x``, in dtype and device too."""
    if x.dim() != 4 or w.dim() != 4 or w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise ValueError(f"filters {tuple(w.shape)} in {groups} groups do not fit images {tuple(x.shape)}")
    if x.dtype != w.dtype or x.device != w.device:
        raise ValueError(f"x is {x.dtype} on {x.device}, w {w.dtype} on {w.device}: give one dtype on one device")
