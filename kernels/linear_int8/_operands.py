"""What the implementations share: a check of the operands, and the weight in the dtype of x."""

from __future__ import annotations

import torch
from torch import Tensor


def require_quantized(x: Tensor, weight: Tensor, scale: Tensor, group: int) -> None:
    """Raise ValueError unless shapes, dtypes and devices are as in ``kernels.linear_int8``."""
    groups = -(-x.shape[-1] // group) if group > 0 else 1
    fits = x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[1] and group >= 0
    if not fits or scale.shape != (weight.shape[0], groups):
        shapes = f"x {[*x.shape]}, weight {[*weight.shape]} and scale {[*scale.shape]} with group={group}"
        raise ValueError(f"{shapes}: give [m, k], [n, k] and [n, groups], here with {groups} groups")
    if weight.dtype != torch.int8 or scale.dtype != x.dtype or not x.device == weight.device == scale.device:
        given = ", ".join(f"{tensor.dtype} on {tensor.device}" for tensor in (x, weight, scale))
        raise ValueError(
            f"x, weight and scale are {given}: give an int8 weight and a scale of the dtype of x, on one device"
        )


def dequantized(weight: Tensor, scale: Tensor, group: int) -> Tensor:
    """Return weight times scale [n, k], in the dtype of ``scale``."""
    if scale.shape[1] == 1:
        return weight * scale
    n, k = weight.shape
    if k % group:  # by places: a repeated scale that is cut to k is compiled wrongly for CPUs by torch 2.13
        return weight * scale[:, torch.arange(k, device=weight.device) // group]
    return (weight.view(n, -1, group) * scale[:, :, None]).view(n, k)
