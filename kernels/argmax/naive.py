"""Place of the maximum from the maximum: the least of the places that have it."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the place of the maximum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.argmax``."""
    along = 0 if dim == "all" else int(dim)
    x = x.flatten() if dim == "all" else x
    count = x.shape[along]
    places = torch.arange(count, device=x.device)
    chosen = (x == x.amax(along, keepdim=True)) | x.isnan()
    return torch.where(chosen, places if x.dim() == 1 or along == 1 else places[:, None], count).amin(along)
