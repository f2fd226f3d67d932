"""``aten``: torch's operators, bound before a case is loaded, since it may replace those of torch and torch.ops."""

from __future__ import annotations

from types import SimpleNamespace

import torch

OPERATORS = """
_to_copy abs add add_ addcmul addcmul_ amax amin argmax cat clamp clone contiguous copy_ detach div dot empty_like eq
equal expand full_like ge gt index_select isfinite isinf isnan item le lerp logical_and logical_not logical_or
logical_or_ masked_fill max mean mul nan_to_num new_zeros reshape resolve_conj resolve_neg select sign slice sqrt
square sub sum topk where zeros zeros_like
"""

aten = SimpleNamespace(
    **{name: getattr(torch.ops.aten, name) for name in OPERATORS.split()},
    max_dim=torch.ops.aten.max.dim,
    mean_dim=torch.ops.aten.mean.dim,
    sum_dim=torch.ops.aten.sum.dim_IntList,
    view_dtype=torch.ops.aten.view.dtype,
)
