"""Forward and backward of any function: outputs, gradients of inputs and of parameters of modules, and operations."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ..kernels.unsupported import Unsupported
from ..models.layout import Layout, laid_out
from ..records.grouping import reachable
from ..tasks.own_file import Pass
from ..timing import nested
from ..timing.arguments import Inputs

OF_ONE = 11 / 16  # the gradient of an output of one element, if it is the first output

_Forward = tuple[list[Tensor], list[Tensor], list[Tensor]]  # outputs, leaves, gradients of the outputs


def wanted(args: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors whose gradients are taken: arguments, and parameters of modules among them.

    Of the arguments these are all that require a gradient, or, if none does, all floating and complex ones. Buffers of
    modules have none. Parameters are in the order of their names, since a class may make them in another order than
    the reference.
    """
    modules = [part for _, part in nested.parts(tuple(args)) if isinstance(part, torch.nn.Module)]
    named = [sorted(module.named_parameters(), key=lambda named: named[0]) for module in modules]
    parameters: list[Tensor] = [parameter for module in named for _, parameter in module]
    within = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    numbers = [x for x in nested.tensors(tuple(args)) if x.is_floating_point() or x.is_complex()]
    plain = [tensor for tensor in numbers if id(tensor) not in within]
    return [tensor for tensor in plain if tensor.requires_grad] or plain, parameters


def upstream(
    outputs: Mapping[nested.Path, Tensor], layout: Layout, paths: Collection[nested.Path] = ()
) -> list[Tensor]:
    """Return a gradient for each of ``outputs``: multiples of 1/16, which are exact in every type.

    They depend on the shape of the output and on its place, so that a backward pass must not mix outputs up. Places are
    those in ``paths``, which the reference's outputs have, if the outputs have the same paths in any order. The
    gradient of a single number, such as a loss, is never 1, so that it must be read. In the layout "contiguous" they
    lie in memory as ``outputs`` do. No mode of torch sees how they are drawn: to the check of a reference, they are
    inputs.
    """
    gradients = {path: torch.empty_like(output) for path, output in outputs.items()}
    with _disable_current_modes(), torch.no_grad():
        for place, path in enumerate(paths if {*paths} == {*outputs} else outputs):
            gradient = gradients[path]
            parts = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            generator = torch.Generator(gradient.device).manual_seed(place)
            drawn = torch.randint(-16, 17, parts.shape, generator=generator, device=gradient.device)
            numbers = drawn.to(torch.float32) / 16
            parts.copy_(numbers if gradient.numel() > 1 else numbers.fill_(OF_ONE + place / 8))
    return [laid_out(gradient, layout) for gradient in gradients.values()]


def with_leaves(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any], list[Tensor]]:
    """Return the arguments with leaves of autograd over the same memory, and the leaves."""
    arguments = (tuple(args), dict(kwargs))
    tensors, parameters = wanted(arguments)
    chosen = {id(tensor) for tensor in tensors}
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        if id(tensor) not in chosen:
            return tensor.detach()
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1]

    return *nested.mapped(leaf, arguments), [*leaves, *parameters]


def differentiable(result: object) -> dict[nested.Path, Tensor]:
    """Return the outputs that depend on a leaf, by their paths. Raises Unsupported if none does."""
    outputs = {path: leaf for path, leaf in nested.leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad}
    if not outputs:
        raise Unsupported("no output depends on an input that has a gradient: time its forward alone")
    return outputs


def _refuse_data_parallel(*values: object) -> None:
    """Raise Unsupported if a module within ``values`` would not reduce its gradients."""
    if nested.data_parallel(values):
        raise Unsupported(
            "DistributedDataParallel reduces gradients in backward(), and here torch.autograd.grad takes them: "
            "give a training step that calls backward(), with workload.pass=fwd or without grad=True"
        )


class Gradients:
    """A call of forward and backward. Returns the outputs and the gradients; no ``.grad`` changes.

    With ``others``, gradients of other tensors, such as the parameters of a module that the function refers to, are
    computed too. ``paths``: paths of the reference's differentiable outputs, for ``upstream``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        layout: Layout = "contiguous",
        paths: Collection[nested.Path] = (),
        *,
        others: bool = True,
    ) -> None:
        _refuse_data_parallel(function, args, kwargs)
        self._function, self._layout, self._paths, self._has_others = function, layout, paths, others
        self._args, self._kwargs, self._leaves = with_leaves(args, kwargs or {})
        self._others: list[Tensor] = []
        self.upstream: list[Tensor] = []  # a gradient for each output, after the first call
        self.paths: list[nested.Path] = []  # paths of the outputs that have them

    def __call__(self) -> tuple[Any, ...]:
        """Return the outputs, detached, and then each gradient; None where an output does not depend on an input."""
        with torch.enable_grad():
            result = self._function(*self._args, **self._kwargs)
            by_path = differentiable(result)
            outputs = [*by_path.values()]
            if not self.upstream:
                self.paths, self.upstream = [*by_path], upstream(by_path, self._layout, self._paths)
                known = {id(leaf) for leaf in self._leaves}
                self._others = [leaf for leaf in _leaves_of(outputs) if self._has_others and id(leaf) not in known]
            leaves = [*self._leaves, *self._others]
            gradients = torch.autograd.grad(outputs, leaves, self.upstream, allow_unused=True) if leaves else ()
        return (nested.mapped(Tensor.detach, result), *gradients[: len(self._leaves)])


def _leaves_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of the autograd graph of ``outputs``."""
    starts: list[Any] = [output.grad_fn for output in outputs if output.grad_fn]
    nodes = reachable(starts, lambda node: [following for following, _ in node.next_functions if following])
    return [node.variable for node in nodes if hasattr(node, "variable")]


class GradientsAlone:
    """A call of backward without its forward, which runs once on each stream. Returns the gradients.

    ``paths``: paths of the reference's differentiable outputs, for ``upstream``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        layout: Layout,
        paths: Collection[nested.Path] = (),
    ) -> None:
        _refuse_data_parallel(function, args, kwargs)
        self._function, self._given, self._layout, self._paths = function, (args, kwargs), layout, paths
        self._forwards: dict[object, _Forward] = {}
        self._changes: set[int] | None = None  # ids of arguments that a forward changes

    def __call__(self) -> tuple[Tensor | None, ...]:
        """Return each gradient; None where an output does not depend on an input."""
        stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        if stream not in self._forwards:
            self._forwards[stream] = self._forward() if self._forwards else self._first_forward()
        outputs, leaves, given = self._forwards[stream]
        return torch.autograd.grad(outputs, leaves, given, retain_graph=True, allow_unused=True)

    def _first_forward(self) -> _Forward:
        """Run the forward. If it changes arguments, as BatchNorm does, undo that and run it on copies of them.

        A backward needs them as the forward left them, and other calls as they were before.
        """
        inputs = Inputs(self._given)
        inputs.copy(without={id(tensor) for tensor in chain(*wanted(self._given))})
        forward = self._forward()
        inputs.note_changes()
        if not inputs.changed and not inputs.replaces:
            return forward
        del forward  # its activations
        self._changes = {id(now) for now, _ in inputs.changed}
        inputs.restore()
        return self._forward()

    def _forward(self) -> _Forward:
        changes, given = self._changes, self._given
        if changes is not None:
            given = nested.mapped(lambda x: x.clone() if id(x) in changes else x, given, nested.copied)
        args, kwargs, leaves = with_leaves(*given)
        with torch.enable_grad():
            outputs = differentiable(self._function(*args, **kwargs))
        return [*outputs.values()], leaves, upstream(outputs, self._layout, self._paths)


class WithGradients:
    """A function that returns the gradients of ``function``, after its outputs if ``outputs``.

    Gradients of other tensors are not computed: autograd refuses those in float64 of parameters in float32.
    """

    def __init__(self, function: Callable[..., Any], *, outputs: bool) -> None:
        self.__wrapped__, self.outputs = function, outputs  # the signature of the first names the arguments
        self.paths: Collection[nested.Path] = ()  # of the differentiable outputs, after a first call
        self.upstream_bytes = 0  # bytes of the gradients that are given to the first call's outputs

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return each gradient; None where an output does not depend on an input."""
        return self.of(self.__wrapped__, args, kwargs)

    def of(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the same for another ``function`` of the same arguments, such as a copy of a module."""
        gradients = Gradients(function, args, kwargs, others=False)
        results = gradients()
        self.paths = gradients.paths
        self.upstream_bytes = self.upstream_bytes or sum(int(given.nbytes) for given in gradients.upstream)
        return results if self.outputs else results[1:]


class RecurrentByShape(TorchFunctionMode):
    """Make results of GRU and RNN by their shapes: torch's operators take seconds for their steps without memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.gru, torch.rnn_tanh, torch.rnn_relu) and isinstance(args[2], list | tuple):  # not packed
            x, state, directions = args[0], args[1], 1 + args[7]
            return x.new_empty(*x.shape[:-1], directions * state.shape[-1]), torch.empty_like(state)
        return function(*args, **(kwargs or {}))


def flops(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], pass_: Pass) -> int:
    """Return the operations of products, convolutions and attention in a pass of ``function``, by torch's own counter.

    It runs on meta tensors, so nothing is computed. Return 0, which means unknown, if the pass has none of these or
    cannot run so.
    """
    try:
        with torch.device("meta"):
            args, kwargs = nested.mapped(
                lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).requires_grad_(x.requires_grad),
                (tuple(args), dict(kwargs)),
                lambda module: nested.copied(module).to("meta"),
            )
            return _counted(function, args, kwargs, pass_)
    except Exception:  # a value that is read, an operation without a meta kernel: any function of the user's may raise
        return 0


def _counted(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], pass_: Pass) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        if pass_ == "fwd":
            function(*args, **kwargs)
            return int(counter.get_total_flops())
        args, kwargs, leaves = with_leaves(args, kwargs)
        with torch.enable_grad():
            outputs = [*differentiable(function(*args, **kwargs)).values()]
        forward = int(counter.get_total_flops())
        # The counter's hooks on modules do not allow autograd.grad.
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs], inputs=leaves)
        return int(counter.get_total_flops()) - (forward if pass_ == "bwd" else 0)
