"""Matrix product of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL, tuned as is QuACK's default.

The first product of a size times every configuration, which are compiled if no cache on disk has them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda
from ._product import require_product

with needs("quack-kernels", extra="quack"):
    from quack.gemm_interface import gemm

MULTIPLE = 8  # elements: tensor memory descriptors read rows of a multiple of 16 bytes


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Compute a @ b; shapes as in ``kernels.matmul``.

    Raises:
        Unsupported: the tensors are not on a GPU, not aligned, or of another dtype or length of rows.
        ValueError: ``a`` and ``b`` cannot be multiplied.

    """
    require_cuda(a, "QuACK")
    require_product(a, b)
    if a.dtype not in (torch.float16, torch.bfloat16):
        raise Unsupported(f"this product of QuACK takes float16 and bfloat16, not {a.dtype}")
    if a.shape[1] % MULTIPLE or b.shape[1] % MULTIPLE:
        raise Unsupported(f"QuACK's product takes k and n that are multiples of {MULTIPLE}")
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a, b))
    for x in (a, b):
        require_aligned(x, "QuACK")
        if max(x.stride()) % MULTIPLE:
            raise Unsupported(
                f"QuACK's product takes columns of a multiple of {MULTIPLE} elements if they are stored so"
            )
    y: Tensor = gemm(a, b)
    return y
