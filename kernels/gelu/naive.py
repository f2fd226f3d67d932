"""GELU from elementary operations. Each is a separate kernel that reads and writes the whole tensor."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor


def _tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))  # nine kernels


def _erf(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / sqrt(2)))  # five kernels


FORMS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": _tanh, "erf": _erf}


def gelu(x: Tensor, *, form: str) -> Tensor:
    """Compute GELU of each element of ``x``; shapes and dtypes as in ``kernels.gelu``."""
    # Compute in float32: rounded to 16 bits after each step, 1 + tanh would be 0 in the left tail.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return FORMS[form](wide).to(x.dtype)
