"""What two tensors that are to be added have in common."""

from __future__ import annotations

from torch import Tensor


def require_alike(a: Tensor, b: Tensor) -> None:
    """Raises ValueError if they differ in shape, type or device."""
    for what, one, other in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype), ("device", a.device, b.device)):
        if one != other:
            raise ValueError(f"a has {what} {one}, b has {other}: give two that are alike")
