"""Training: what workloads with a backward do with a forward function. Imports torch, so they import it when called.

Gradients and compilation. A function compiled with ``mode="reduce-overhead"`` returns tensors that its next call
overwrites, gradients among them, and autograd makes the first gradient it gets for a parameter the parameter's
``.grad``, without a copy. So nothing here holds an output over a step, and gradients that accumulate do so in buffers
made beforehand: autograd then adds to those, rather than keep what is about to be overwritten.

Backward alone. It runs on the stream that its forward ran on, whichever is current, and what gathers the gradient of a
leaf on the one where that leaf was first used; a CUDA graph captures a stream. So each stream has a leaf and a forward,
made when a call first comes on it: whoever captures has called before, to warm up. All of them are kept, for a captured
backward reads what its forward has saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from runner.kernels.spans import span
from runner.kernels.unsupported import Unsupported
from runner.timing import Call

Forward = Callable[[], Tensor]
Outputs = tuple[Tensor, ...]
Clear = Callable[[], None]
Told = Callable[[Tensor], None]  # of the loss, a scalar on the device, after each step


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory as parameters: autograd gathers gradients for them, and nothing may change them."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parameters that may be changed."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def forward_only(forward: Forward, steps: int) -> Call:
    """``steps`` forward passes without autograd. Output: y of the last."""

    def step(index: int) -> Tensor:
        with span(f"step_{index}"), span("forward"):
            return forward()

    def run() -> Outputs:
        with torch.no_grad():
            for index in range(steps - 1):
                step(index)
            return (step(steps - 1),)

    return Call(run=run)


def backward_only(function: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Call:
    """The gradient of x from that of ``function(x)``, whose forward is not part of the call. Output: dx.

    The call raises Unsupported if ``function`` has no backward.
    """
    _let_backward_reuse_buffers(False)
    forwards: dict[object, tuple[Tensor, Tensor]] = {}  # a leaf, and y of it

    def run() -> Outputs:
        stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
        if stream not in forwards:
            (leaf,) = leaves([x])
            y = function(leaf)
            if not y.requires_grad:
                raise Unsupported("it has no backward: autograd does not know how it makes y of x")
            forwards[stream] = leaf, y
        leaf, y = forwards[stream]
        return torch.autograd.grad(y, leaf, dy, retain_graph=True)

    return Call(run=run)


def print_loss(loss: Tensor) -> None:
    """Print a number that is on the device: the host waits until all before it is done, and copies it."""
    print(f"loss {loss.item():.6g}")


def forward_backward(
    forward: Forward, steps: int, params: list[Tensor], *, accumulate: bool, told: Told | None = None
) -> Call:
    """``steps`` times ``y.mean().backward()``. Outputs: y of the last step, and the gradient of every parameter.

    Gradients are those of the last step, or summed over the steps if they ``accumulate``. ``told`` gets each loss.
    """
    _let_backward_reuse_buffers(True)
    clear, between = _clearing(params, accumulate)

    def step(index: int) -> Tensor:
        with span(f"step_{index}"):
            y, loss = _step(forward)
            if told:
                told(loss)
            return y

    def run() -> Outputs:
        clear()
        for index in range(steps - 1):
            step(index)
            between()
        return (step(steps - 1), *_gradients(params))

    return Call(run=run)


def train(
    forward: Forward, steps: int, params: list[Tensor], *, accumulate: bool, lr: float, told: Told | None = None
) -> Call:
    """``steps`` times ``y.mean().backward()`` and p -= lr * gradient (SGD), in place. Outputs: the parameters.

    They are the parameters themselves, not copies: the next ``run`` changes them, and ``reset`` puts them back.
    ``told`` gets each loss.
    """
    _let_backward_reuse_buffers(True)
    clear, between = _clearing(params, accumulate)
    start = [param.detach().clone() for param in params]

    def step(index: int) -> None:
        with span(f"step_{index}"):
            _, loss = _step(forward)
            with span("optimizer_step"), torch.no_grad():
                torch._foreach_add_(params, _gradients(params), alpha=-lr)
            if told:
                told(loss)

    def run() -> Outputs:
        clear()
        for index in range(steps - 1):
            step(index)
            between()
        step(steps - 1)
        return tuple(param.detach() for param in params)

    def reset() -> None:
        clear()
        with torch.no_grad():
            torch._foreach_copy_(params, start)

    return Call(run=run, reset=reset)


def _step(forward: Forward) -> tuple[Tensor, Tensor]:
    """Forward, loss and backward; y and the loss."""
    with span("forward"):
        y = forward()
        loss = y.mean()
    with span("backward"):
        loss.backward()
    return y.detach(), loss.detach()


def _let_backward_reuse_buffers(may: bool) -> None:
    """Whether a compiled backward writes over what was saved for it, and so runs once only: by default it may.

    torch looks when a forward is compiled and again when a backward runs, so this stays until the next call is made.
    """
    from torch._functorch import config

    if hasattr(config, "donated_buffer"):
        config.donated_buffer = may


def _clearing(params: list[Tensor], accumulate: bool) -> tuple[Clear, Clear]:
    """How to clear all gradients, and what to do about them between two steps."""
    if not accumulate:
        clear = partial(_drop_gradients, params)
        return clear, clear
    for param in params:
        param.grad = torch.zeros_like(param)
    return partial(torch._foreach_zero_, _gradients(params)), lambda: None


def _drop_gradients(params: list[Tensor]) -> None:
    for param in params:
        param.grad = None  # cheaper than zeros: the next gradient is kept as it comes, instead of added


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return [param.grad for param in params if param.grad is not None]
