"""Calls of workloads with a backward, made from a forward function. Workloads import this late, since it imports torch.

Gradients and compilation. A function compiled with ``mode="reduce-overhead"`` returns tensors, gradients among them,
that its next call overwrites. Autograd uses the first gradient of a parameter as its ``.grad`` without a copy. So
nothing here keeps an output across a step, and accumulated gradients have buffers that exist before: autograd then adds
to these buffers, and does not keep a tensor that will be overwritten.

Backward alone. Backward runs on the stream of its forward, whichever stream is current. The gradient of a leaf is
accumulated on the stream where the leaf was first used. A CUDA graph captures one stream. So each stream has its own
leaf and forward, made by the first call on that stream; a capture comes after warm-up calls on the same stream. All of
them are kept, since a captured backward reads what its forward has saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..kernels.spans import span
from ..kernels.unsupported import Unsupported
from ..timing.call import Call
from ..timing.correctness import WrongOutput

Forward = Callable[[], Tensor]
Outputs = tuple[Tensor, ...]
Clear = Callable[[], None]
Loss = Callable[[Tensor], Tensor]  # y → the loss
OnLoss = Callable[[Tensor], None]  # called with the loss, a scalar on the device, after each step
RUNS_AGAIN = "backward runs again"  # tag of compiled code in caches


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return parameters that share the memory of ``tensors``, for which autograd accumulates gradients.

    Do not change them.
    """
    return [tensor.detach().requires_grad_() for tensor in tensors]


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return parameters with copies of ``tensors``, which may be changed."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def autocast(forward: Forward, x: Tensor, dtype: str) -> Forward:
    """Return ``forward`` under torch.autocast in ``dtype``; its result is converted to the dtype of ``x``."""

    def cast() -> Tensor:
        with torch.autocast(x.device.type, getattr(torch, dtype)):
            y = forward()
        return y.to(x.dtype)

    return cast


def forward_only(forward: Forward, steps: int) -> Call:
    """Return a call of ``steps`` forward passes without autograd. Its output is y of the last pass."""

    def step(index: int) -> Tensor:
        with span(f"step_{index}"), span("forward"):
            return forward()

    def run() -> Outputs:
        with torch.no_grad():
            for index in range(steps - 1):
                step(index)
            return (step(steps - 1),)

    return Call(run=run)


def with_backward(function: Callable[..., Tensor], *tensors: Tensor) -> Call:
    """Return a call of ``function`` and its backward. Its outputs are y and what ``backward_only`` returns."""
    let_backward_reuse_buffers(True)
    args, wanted = _differentiated(tensors[:-1])

    def run() -> Outputs:
        y = _fit_for(tensors[-1], function(*args))
        return (y.detach(), *torch.autograd.grad(y, wanted, tensors[-1], allow_unused=True))

    return Call(run=run)


def backward_only(function: Callable[..., Tensor], *tensors: Tensor) -> Call:
    """Return a call of the backward of ``function`` without its forward.

    The last of ``tensors`` is the gradient of y, the others are the arguments of ``function``. The outputs are the
    gradients of the floating ones among them. The call raises Unsupported if ``function`` has no backward.
    """
    let_backward_reuse_buffers(False)
    forwards: dict[object, tuple[list[Tensor], Tensor]] = {}  # leaves, and y of them

    def run() -> Outputs:
        stream = torch.cuda.current_stream(tensors[-1].device) if tensors[-1].is_cuda else None
        if stream not in forwards:
            args, wanted = _differentiated(tensors[:-1])
            forwards[stream] = wanted, _fit_for(tensors[-1], function(*args))
        wanted, y = forwards[stream]
        return torch.autograd.grad(y, wanted, tensors[-1], retain_graph=True, allow_unused=True)

    return Call(run=run, keeps_forward=True)


def _differentiated(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return ``tensors`` with leaves in place of floating ones, and the leaves."""
    args = [leaves([tensor])[0] if tensor.is_floating_point() else tensor for tensor in tensors]
    return args, [tensor for tensor in args if tensor.requires_grad]


def _fit_for(gradient: Tensor, y: Tensor) -> Tensor:
    """Return ``y``. Raises WrongOutput if its ``gradient`` has another shape, and Unsupported without a backward."""
    if y.shape != gradient.shape:
        raise WrongOutput(f"y: shape {tuple(y.shape)} where the reference has {tuple(gradient.shape)}")
    if not y.requires_grad:
        raise Unsupported("it has no backward: autograd cannot differentiate y; use pass=fwd")
    return y


def print_loss(loss: Tensor) -> None:
    """Print the loss. The host waits for all earlier work on the device."""
    print(f"loss {loss.item():.6g}")


def forward_backward(
    forward: Forward,
    steps: int,
    params: list[Tensor],
    *,
    accumulate: bool,
    loss_of: Loss = Tensor.mean,
    on_loss: OnLoss | None = None,
) -> Call:
    """Return a call of ``steps`` times forward and ``loss_of(y).backward()``.

    Its outputs are y of the last step and the gradient of every parameter, of the last step or, with ``accumulate``,
    summed over all steps. ``on_loss`` is called with each loss.
    """
    let_backward_reuse_buffers(True)
    clear, between = _clearing(params, accumulate)

    def step(index: int) -> Tensor:
        with span(f"step_{index}"):
            y, loss = _step(forward, loss_of)
            if on_loss:
                on_loss(loss)
            return y

    def run() -> Outputs:
        clear()
        for index in range(steps - 1):
            step(index)
            between()
        return (step(steps - 1), *_gradients(params))

    return Call(run=run)


def train(
    forward: Forward,
    steps: int,
    params: list[Tensor],
    *,
    accumulate: bool,
    lr: float,
    adamw: Callable[..., object] | None = None,
    before: int = 0,
    second: float = 0.0,
    loss_of: Loss = Tensor.mean,
    on_loss: OnLoss | None = None,
    load: Callable[[int], object] | None = None,
    with_y: bool = False,
    with_gradients: bool = False,
) -> Call:
    """Return a call of ``steps`` times forward, ``loss_of(y).backward()`` and an update of the parameters in place.

    ``load`` is called with the number of each step, before its forward; it has the span "load" around its copy.

    The update is p -= lr * gradient (SGD), or a step of ``adamw``, a function as that workload takes, after ``before``
    others. Its moments, at least as wide as float32, are 0 and ``second`` when the call begins. The outputs are the
    parameters themselves, not copies: the next ``run`` changes them, and ``reset`` restores them. Then come, if asked
    for, y (``with_y``) and the gradients (``with_gradients``) of the last step. ``on_loss`` is called with each loss.
    """
    let_backward_reuse_buffers(True)
    clear, between = _clearing(params, accumulate)
    start = [param.detach().clone() for param in params]
    kinds = [torch.promote_types(param.dtype, torch.float32) for param in params] * 2 if adamw else []
    moments = [torch.zeros_like(param, dtype=kind) for param, kind in zip(params * 2, kinds, strict=False)]
    seconds = moments[len(params) :]
    for moment in seconds:
        moment.fill_(second)

    def update(index: int) -> None:
        if adamw is None:
            torch._foreach_add_(params, _gradients(params), alpha=-lr)
        else:
            adamw(*params, *_gradients(params), *moments, step=before + index + 1, lr=lr)

    def step(index: int) -> list[Tensor]:
        with span(f"step_{index}"):
            if load:
                load(index)
            y, loss = _step(forward, loss_of)
            with span("optimizer_step"), torch.no_grad():
                update(index)
            if on_loss:
                on_loss(loss)
            last = index == steps - 1  # what an earlier step kept would lie in memory during the next one
            kept = [y] * (last and with_y) + (_gradients(params) if last and with_gradients else [])
            with span("zero_grad"):
                between()
            return kept

    def run() -> Outputs:
        clear()
        kept: list[Tensor] = []
        for index in range(steps):
            kept = step(index)
        return (*(param.detach() for param in params), *kept)

    def reset() -> None:
        clear()
        with torch.no_grad():
            torch._foreach_copy_(params, start)
            if moments:
                torch._foreach_zero_(moments)
                torch._foreach_add_(seconds, second)

    return Call(run=run, reset=reset)


def _step(forward: Forward, loss_of: Loss) -> tuple[Tensor, Tensor]:
    """Run forward, loss and backward. Return y and the loss."""
    with span("forward"):
        y = forward()
        with span("loss"):
            loss = loss_of(y)
    with span("backward"):
        loss.backward()
    return y.detach(), loss.detach()


def let_backward_reuse_buffers(may: bool) -> None:
    """Set whether a compiled backward may overwrite the tensors saved for it, and so can run only once.

    torch allows it by default. It reads the setting when a forward is compiled and again when a backward runs, so the
    setting stays until the next call is made. Inductor's cache does not tell the two kinds of backward apart, so the
    one that runs again and again is kept under a tag of its own.
    """
    from torch._functorch import config
    from torch.compiler import config as caching

    if hasattr(config, "donated_buffer"):
        config.donated_buffer = may
    if hasattr(caching, "cache_key_tag"):  # torch 2.7 and later
        caching.cache_key_tag = caching.cache_key_tag.removesuffix(RUNS_AGAIN) + RUNS_AGAIN * (not may)


def _clearing(params: list[Tensor], accumulate: bool) -> tuple[Clear, Clear]:
    """Return two functions: one clears all gradients before a call, one treats them between two steps."""
    if not accumulate:
        clear = partial(_drop_gradients, params)
        return clear, clear
    for param in params:
        param.grad = torch.zeros_like(param)
    return partial(torch._foreach_zero_, _gradients(params)), lambda: None


def _drop_gradients(params: list[Tensor]) -> None:
    for param in params:
        param.grad = None  # cheaper than zeros: autograd keeps the next gradient instead of adding it


def _gradients(params: list[Tensor]) -> list[Tensor]:
    """Return the gradient of each parameter: zeros if the forward does not depend on it, which is then judged."""
    return [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
