"""Sum in Numba (https://github.com/NVIDIA/numba-cuda): a thread for each element."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numba_device import launch, require_numba
from ..unsupported import needs
from ._alike import require_alike

with needs("numba-cuda", extra="numba"):
    from numba import cuda


@cuda.jit
def _add(a, b, y):
    index = cuda.grid(1)
    if index < y.size:
        y[index] = a[index] + b[index]


def add(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``a + b``; shapes as in ``kernels.add``. ``y`` is contiguous.

    Operands that are not contiguous are copied first.

    Raises:
        Unsupported: ``a`` is bfloat16, or not on a GPU while Numba's simulator is off.
        ValueError: ``a`` and ``b`` differ in shape, dtype or device.

    """
    require_numba(a)
    require_alike(a, b)
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    launch(_add, a, b, y)
    return y
