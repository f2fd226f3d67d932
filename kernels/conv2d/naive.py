"""Convolution as its definition says: for each number of a filter, a product of it with the image below it is added."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def conv2d(x: Tensor, w: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    """Compute the convolution; shapes and dtypes as in ``kernels.conv2d``."""
    wide = torch.promote_types(x.dtype, torch.float32)  # a sum in 16 bits loses terms that are much smaller than it
    filters, channels, rows, cols = w.shape
    images = F.pad(x.to(wide), (padding,) * 4).unflatten(1, (groups, 1, channels))
    each = w.to(wide).unflatten(0, (groups, filters // groups))
    height, width = (
        (size - dilation * (taps - 1) - 1) // stride + 1
        for size, taps in zip(images.shape[-2:], (rows, cols), strict=True)
    )
    y: Tensor = images.new_zeros(x.shape[0], groups, filters // groups, height, width)
    for row in range(rows):
        for col in range(cols):
            down = slice(row * dilation, row * dilation + (height - 1) * stride + 1, stride)
            along = slice(col * dilation, col * dilation + (width - 1) * stride + 1, stride)
            part = torch.zeros_like(y)  # a sum of sums has smaller errors
            for channel in range(channels):
                part = part + images[:, :, :, channel, down, along] * each[None, :, :, channel, row, col, None, None]
            y = y + part
    return y.flatten(1, 2).to(x.dtype)
