"""Convolution by Fourier transforms, which turn it into a product at each frequency.

The time does not depend on the size of a filter. It computes the result for a stride of 1, and a dilated filter is one
with zeros in between, so stride and dilation save nothing. An error is relative to the largest results, not to each
one. So it computes in float64, and a result that may be nothing but an error is 0, as where filters meet zeros alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ERROR = 2.0**-44  # of the largest result


@torch.no_grad()
def conv2d(x: Tensor, w: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    """Compute the convolution; shapes and dtypes as in ``kernels.conv2d``. It has no backward."""
    spread = F.pad(w.double()[..., None, :, None], (0, dilation - 1, 0, 0, 0, dilation - 1))
    size = [length + 2 * padding for length in x.shape[2:]]
    images = torch.fft.rfft2(x.double(), size).unflatten(1, (groups, -1))
    each = torch.fft.rfft2(spread.flatten(4, 5).flatten(2, 3), size).conj().unflatten(0, (groups, -1))
    # For each group and frequency: filters x channels times channels x images
    product = each.permute(0, 3, 4, 1, 2) @ images.permute(1, 3, 4, 2, 0)
    y: Tensor = torch.fft.irfft2(product.permute(4, 0, 3, 1, 2).flatten(1, 2), size)
    rows, cols = (length - dilation * (taps - 1) for length, taps in zip(size, w.shape[2:], strict=True))
    y = y.roll((padding, padding), (2, 3))[:, :, :rows:stride, :cols:stride]
    return y.masked_fill(y.abs() <= ERROR * y.abs().amax(), 0.0).to(x.dtype)  # and NaN stays
