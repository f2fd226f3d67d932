"""Convolution as a matrix product: the pixels below the filter, at each place of it, become a column (im2col).

The columns hold each pixel once for each number of a filter that meets it, nine times with 3 x 3. If a gradient of x is
wanted in 16 bits, all is computed in float32: then a forward takes longer than one alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def conv2d(x: Tensor, w: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    """Compute the convolution; shapes and dtypes as in ``kernels.conv2d``."""
    if x.element_size() == 2 and x.requires_grad and torch.is_grad_enabled():
        dtype, x, w = x.dtype, x.float(), w.float()  # dx adds columns that may cancel: their roundings must be small
    else:
        dtype = x.dtype
    columns = F.unfold(x, w.shape[2:], dilation, padding, stride).unflatten(1, (groups, -1))
    y: Tensor = w.reshape(groups, w.shape[0] // groups, -1) @ columns
    height = (x.shape[2] + 2 * padding - dilation * (w.shape[2] - 1) - 1) // stride + 1
    return y.reshape(len(x), len(w), height, -1).to(dtype)
