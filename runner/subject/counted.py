"""Floating-point operations of a function and its backward, counted without computing them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..tasks.own_file import Pass
from ..timing.nested import mapped
from .gradients import differentiable, with_leaves


def flops(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], pass_: Pass) -> int:
    """Return the operations of products, convolutions and attention in a pass of ``function``, by torch's own counter.

    It runs on meta tensors, so nothing is computed. Return 0, which means unknown, if the pass has none of these or
    cannot run so.
    """
    try:
        with torch.device("meta"):
            args, kwargs = mapped(
                _on_meta, (tuple(args), dict(kwargs)), lambda module: copy.deepcopy(module).to("meta")
            )
            return _counted(function, args, kwargs, pass_)
    except Exception:  # a value that is read, an operation without a meta kernel: any function of the user's may raise
        return 0


def _counted(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], pass_: Pass) -> int:
    with FlopCounterMode(display=False) as counter:
        if pass_ == "fwd":
            function(*args, **kwargs)
            return int(counter.get_total_flops())
        args, kwargs, leaves = with_leaves(args, kwargs)
        with torch.enable_grad():
            outputs = differentiable(function(*args, **kwargs))
        forward = int(counter.get_total_flops())
        # The counter's hooks on modules do not allow autograd.grad.
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs], inputs=leaves)
        return int(counter.get_total_flops()) - (forward if pass_ == "bwd" else 0)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return meta.requires_grad_(tensor.requires_grad)
