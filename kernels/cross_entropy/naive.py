"""Cross entropy from elementary operations: max, subtract, exp, sum, log, and the target's own logit."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100  # as in torch


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of each row; shapes and dtypes as in ``kernels.cross_entropy``."""
    # Compute in float32: a sum in 16 bits stops growing once it is 2**8 or 2**11 times as large as its terms.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    shifted = wide - wide.amax(-1, keepdim=True).detach()  # the loss does not depend on it, so it needs no gradient
    own = shifted.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    loss = shifted.exp().sum(-1).log() - own
    return loss.masked_fill(target == IGNORED, 0).to(x.dtype)
