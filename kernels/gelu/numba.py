"""GELU in Numba (https://github.com/NVIDIA/numba-cuda): a thread for each element, with libdevice's erf and tanh.

The constants are arguments, so that their type decides the arithmetic: a number that is written in a kernel is float64,
and so would be all that it meets.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..numba_device import launch, require_numba
from ..unsupported import needs
from ._form import is_tanh

with needs("numba-cuda", extra="numba"):
    from numba import cuda


@cuda.jit
def _erf(one, half, root_half, x, y):
    index = cuda.grid(1)
    if index < y.size:
        v = x[index] * one
        y[index] = half * v * (one + math.erf(v * root_half))


@cuda.jit
def _tanh(one, half, root_2_over_pi, cubic, x, y):
    index = cuda.grid(1)
    if index < y.size:
        v = x[index] * one
        y[index] = half * v * (one + math.tanh(root_2_over_pi * (v + cubic * v * v * v)))


def gelu(x: Tensor, *, form: str) -> Tensor:
    """Compute GELU of each element of ``x``; shapes as in ``kernels.gelu``. ``y`` is contiguous.

    An ``x`` that is not contiguous is copied first.

    Raises:
        Unsupported: ``x`` is bfloat16, requires a gradient, or is not on a GPU while Numba's simulator is off.
        ValueError: ``form`` is neither "erf" nor "tanh".

    """
    tanh = is_tanh(form)
    require_numba(x)
    real = np.float64 if x.dtype == torch.float64 else np.float32
    x = x.contiguous()
    y = torch.empty_like(x)
    if tanh:
        launch(_tanh, real(1), real(0.5), real(math.sqrt(2 / math.pi)), real(0.044715), x, y)
    else:
        launch(_erf, real(1), real(0.5), real(math.sqrt(0.5)), x, y)
    return y
