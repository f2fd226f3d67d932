"""The derivative of a kernel's backward, which none of ours has: asking for it is an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = Tensor | tuple[Tensor | None, ...]

REFUSED = b"this kernel can be differentiated once: for a derivative of its gradient take a function of torch's own"


def no_second_derivative(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A ``torch.autograd.Function``'s backward made of ``backward(ctx, saved, *dy)``, whose result has no derivative.

    Asking for it raises RuntimeError. torch's ``once_differentiable`` raises too, but only if dy requires a gradient,
    and only where all leaves are asked for. In a gradient penalty, as of y * c, dy is the constant c; what backward
    gives is then a constant as well, and the penalty is missing from the gradient without a word.

    Every input of forward that may require a gradient must be ``saved``, or the output be: what backward gives depends
    on these, so there the error is met on the way to whatever is asked for. They are read once, as checkpoints want it.
    """

    @wraps(backward)
    def once(ctx: Any, *dy: Tensor) -> Gradients:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():  # no ``create_graph=True``: nobody can differentiate this
            return backward(ctx, saved, *dy)
        with torch.no_grad():
            found = backward(ctx, saved, *dy)
        if torch.compiler.is_compiling():  # traces with gradients on; what it makes refuses a second one by itself
            return found
        many = found if isinstance(found, tuple) else (found,)
        everything = (*many, *saved, *dy)
        raising: Any = torch._C._functions.DelayedError(REFUSED, len(everything))  # its types know no None
        told: Gradients = raising(*everything)[: len(many)]
        return told

    return once
