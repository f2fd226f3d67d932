"""Sum over ranks in one kernel, which reads the other GPUs' memory: torch's symmetric memory, without multicast."""

from __future__ import annotations

from torch import Tensor

from ..symmetric_memory import shared_copy, summed


def all_reduce(x: Tensor) -> Tensor:
    """Add, as in ``kernels.all_reduce``. ``x`` keeps its values.

    Raises:
        Unsupported: ``x`` is not on a GPU or of another dtype than float32 and bfloat16.

    """
    shared_copy(x)
    return summed(x.numel(), x).view(x.shape)
