"""A reduction from elementary operations: combine the halves of the elements until one element remains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def halve(x: Tensor, dim: str | int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce ``x`` along ``dim``, or to a number if it is "all", in log2 of as many kernels as there are elements.

    An element that has no partner, since their number is odd, is copied with the others to the next round.
    """
    left = x.flatten() if dim == "all" else x.movedim(int(dim), 0)
    while (count := left.shape[0]) > 1:
        half = count // 2
        combined = combine(left[:half], left[half : 2 * half])
        left = torch.cat((combined, left[2 * half :])) if count % 2 else combined
    return left[0]
