"""Linear layer with an int8 weight of torchao (https://github.com/pytorch/ao), its ``Int8WeightOnlyConfig``.

It converts the weight to the dtype of x, multiplies, and then scales; with groups it dequantizes the weight first. It
is made for torch.compile, which fuses some of that: ``impl=compiled impl.of=torchao``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..unsupported import Unsupported, needs

with needs("torchao", extra="torchao"):
    from torchao.quantization import Int8Tensor


def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, *, group: int) -> Tensor:
    """Compute y in the dtype of ``x``; shapes and dtypes as in ``kernels.linear_int8``.

    Raises:
        Unsupported: the last group is shorter than the others.

    """
    k = x.shape[1]
    if group and k % group:
        raise Unsupported(f"torchao takes whole groups: k={k} is no multiple of {group}")
    y: Tensor = F.linear(x, Int8Tensor(weight, scale, [1, group or k], x.dtype))
    return y
