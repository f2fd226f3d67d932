"""GELU from elementary operations: every one is a kernel of its own, which reads and writes all of memory."""

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
    """GELU of ``x``, as in ``kernels.gelu``."""
    # Rounding to 16 bits after each step would leave nothing of 1 + tanh in the left tail.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return FORMS[form](wide).to(x.dtype)
