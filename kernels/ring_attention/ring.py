"""Ring attention: keys and values travel to the next rank while a rank computes with those that it has.

A block is one call of flash attention, and skips what no query sees. Results of blocks are merged by the logarithms of
their sums of weights.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from ..spans import span
from ._block import attend, merge
from ._passing import passed_around
from ._positions import seen


def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, variant: str, overlap: bool = True) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.ring_attention``.

    With ``overlap=False`` a block travels when the last one is computed.
    """
    rank, first = dist.get_rank(), True
    for step, (source, (keys, values)) in enumerate(passed_around((k, v), overlap=overlap)):
        which = seen(rank, source, variant, causal)
        if which == "none" or (which == "before own place" and q.shape[2] == 1):
            continue
        with span(f"block_{step}"):
            if first:
                y, lse = attend(q, keys, values, which == "up to own place")
                y, first = y.float(), False
            elif which == "before own place":  # the first query sees no key, and nobody sees the last one
                merge(y[:, :, 1:], lse[:, :, 1:], attend(q[:, :, 1:], keys[:, :, :-1], values[:, :, :-1], True))
            else:
                merge(y, lse, attend(q, keys, values, which == "up to own place"))
    return y.to(q.dtype)
