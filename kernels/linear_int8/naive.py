"""Linear layer with an int8 weight, as it is defined: dequantize the whole weight, then multiply.

The weight is written and read again, four times as large as it is stored: slower than without quantization.
"""

from __future__ import annotations

from torch import Tensor

from ._operands import dequantized


def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, *, group: int) -> Tensor:
    """Compute y in float32; shapes and dtypes as in ``kernels.linear_int8``."""
    return (x.float() @ dequantized(weight, scale.float(), group).mT).to(x.dtype)
