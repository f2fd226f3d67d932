"""Square in Numba (https://github.com/NVIDIA/numba-cuda): a thread for each element.

``one`` is an argument, so that its type decides the arithmetic, as in ``kernels.gelu.numba``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..numba_device import launch, require_numba
from ..unsupported import needs

with needs("numba-cuda", extra="numba"):
    from numba import cuda


@cuda.jit
def _square(one, a, y):
    index = cuda.grid(1)
    if index < y.size:
        v = a[index] * one
        y[index] = v * v


def square(a: Tensor) -> Tensor:
    """Compute the square of each element of ``a``; shapes as in ``kernels.square``. ``y`` is contiguous.

    An ``a`` that is not contiguous is copied first.

    Raises:
        Unsupported: ``a`` is bfloat16, requires a gradient, or is not on a GPU while Numba's simulator is off.

    """
    require_numba(a)
    a = a.contiguous()
    y = torch.empty_like(a)
    launch(_square, np.float64(1) if a.dtype == torch.float64 else np.float32(1), a, y)
    return y
