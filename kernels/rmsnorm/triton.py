"""RMSNorm in Triton, by ``kernels.row_norms``."""

from __future__ import annotations

from torch import Tensor

from ..row_norms import normalize


def rmsnorm(x: Tensor, w: Tensor, *, eps: float, ROWS: int | None = None, num_warps: int | None = None) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``. ``y`` is contiguous.

    An ``x`` whose rows are not contiguous is copied first. The result can be differentiated once. ``ROWS`` and
    ``num_warps``: rows of a program of the forward that holds whole rows, and its warps, powers of 2; None: chosen.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: a vector is not floating, on another device, or not as long as a row of ``x``.

    """
    return normalize(x, w, None, eps, (ROWS, num_warps))
