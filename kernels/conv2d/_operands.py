"""Check that filters fit images."""

from __future__ import annotations

from torch import Tensor


def require_operands(
    x: Tensor, w: Tensor, *vectors: Tensor, padding: int = 0, dilation: int = 1, groups: int = 1
) -> None:
    """Raise ValueError unless the filters ``w`` and the ``vectors`` [filters] fit the images ``x``, in any respect."""
    if x.dim() != 4 or w.dim() != 4 or w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise ValueError(f"filters {tuple(w.shape)} in {groups} groups do not fit images {tuple(x.shape)}")
    for size, taps in zip(x.shape[2:], w.shape[2:], strict=True):
        if dilation * (taps - 1) >= size + 2 * padding:
            raise ValueError(f"{taps} numbers {dilation} apart do not fit into {size + 2 * padding} pixels")
    for each in (w, *vectors):
        if each.dtype != x.dtype or each.device != x.device:
            raise ValueError(f"{x.dtype} on {x.device}, {each.dtype} on {each.device}: give one dtype on one device")
    for vector in vectors:
        if vector.shape != w.shape[:1]:
            raise ValueError(f"a vector of shape {tuple(vector.shape)} where {w.shape[0]} filters have a number each")
