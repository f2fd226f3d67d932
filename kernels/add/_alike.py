"""Check that two tensors can be added."""

from __future__ import annotations

from torch import Tensor


def require_alike(a: Tensor, b: Tensor) -> None:
    """Raise ValueError if ``a`` and ``b`` differ in shape, dtype or device."""
    for what, one, other in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype), ("device", a.device, b.device)):
        if one != other:
            raise ValueError(f"a has {what} {one}, b has {other}: give two tensors with the same {what}")
