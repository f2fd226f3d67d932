"""OwnOperation: a workload in a user's file, as the worker runs it."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..implementations import loader
from ..implementations.scripts import generators_seeded
from ..kernels.unsupported import Unsupported
from ..models.automatic import Automatic
from ..models.layout import laid_out
from ..models.training import let_backward_reuse_buffers
from ..models.workload import options_for
from ..records.case import Choice, Scalar
from ..records.figures import as_typed
from ..records.schema import RANKED
from ..tasks import own_file
from ..timing import ranks
from ..timing.call import Call, Outputs, Work
from ..timing.correctness import CheckResult
from ..timing.nested import cloned, data_parallel, mapped, parts, reconnect, returned, tensors
from . import own_workload
from .faults import classify
from .gradients import Gradients, GradientsAlone, RecurrentByShape, WithGradients, flops
from .own_workload import OwnWorkload
from .tolerance import Judge

OWN_WEIGHTS = "from the same seed"  # in the column ``weights``
DRAWS = 3  # float64 outputs that are kept to find the tolerance: the value, and sums over the draws


def expected_outputs(workload: Any, inputs: tuple[Tensor, ...], *, quick: bool = False) -> Outputs:
    """Return the judge of the outputs of a workload of any kind; ``quick`` saves time if the tolerance is estimated."""
    if not isinstance(workload, Automatic):
        return workload.expected_outputs(inputs, quick=quick)  # type: ignore[no-any-return]
    computed, how, names = workload.computed, workload.how, workload.names
    return Judge(workload.outputs_of, inputs, tf32=workload.tf32, quick=quick, computed=computed, how=how, names=names)


@dataclass
class Drawn:
    """What a workload has drawn and found out in this process."""

    arguments: Any = None  # of all calls, positional and by name: those of the first draw
    tensors: tuple[Tensor, ...] = ()  # among them
    made_by: tuple[str, int] = ("cpu", 0)  # device and seed of the arguments
    paths: Collection[str] = ()  # of the reference's differentiable outputs
    outside_bytes: int = 0  # of the reference's outputs, and of the gradients given to them


@dataclass(frozen=True)
class OwnOperation(OwnWorkload):
    """A workload in a file, whose inputs can be drawn, and whose functions can be called and checked."""

    drawn: Drawn = field(default_factory=Drawn, compare=False)

    @cached_property
    def module(self) -> ModuleType:
        """The file, run as a module, which no implementation shares: it may change what it finds there.

        Raises Unsupported if it is no workload.
        """
        if self.file.refused:
            raise Unsupported(self.file.refused)
        before = {*loader.loaded()}
        module = loader.load_file(Path(self.fields.path), functions=self.file.parts, apart="workload")
        loader.keep_functions({*loader.loaded()} - before)
        return module

    # --- inputs ---

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the tensors among the inputs, parameters and buffers of modules included.

        Calls use the tensors of the first time. A further time, new tensors are returned: of the same seed, the same.
        """
        arguments = self.draw(device, seed)
        drawn = tuple(tensors(arguments))
        if self.drawn.arguments is None:
            self.drawn.arguments, self.drawn.tensors = arguments, drawn
        return drawn

    def draw(self, device: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Call ``inputs`` of the file, with seeds set and restored. Return positional and keyword arguments.

        Each rank has its own seed, so that none is right without the inputs of the others. If ``inputs`` names
        ``rank`` or ``world_size``, all ranks have the same seed, and the file decides what they share.
        """
        seed += 0 if {*RANKED} & {*self.file.filled} else self.place.get("rank", 0)
        given = {name: getattr(self.fields, name) for name in self.file.of_inputs}
        filled: dict[str, Any] = {"device": device, "seed": seed}
        filled["dtype"] = getattr(torch, self.fields.dtype or self.file.dtype or "float32")
        filled |= self.place
        if "generator" in self.file.filled:
            filled["generator"] = torch.Generator(device).manual_seed(seed)
        given |= {name: filled[name] for name in self.file.filled}
        if self.drawn.arguments is None:
            self.drawn.made_by = device, seed
        with _seeds(device, seed):
            value = self.module.inputs(**given)
        if value is None:
            raise TypeError(f"inputs() returns None; return the arguments, as in {own_file.EXAMPLE}")
        args, kwargs = ((), value) if type(value) is dict else (value if type(value) is tuple else (value,), {})
        given_parts, has_backward = [part for _, part in parts((args, kwargs))], self.fields.pass_ != "fwd"
        optimizers = [part for part in given_parts if isinstance(part, torch.optim.Optimizer)]
        trained = {id(each) for one in optimizers for group in one.param_groups for each in group["params"]}
        for part in given_parts:
            if isinstance(part, torch.nn.Module):
                if self._cast() or any(tensor.device.type != device for tensor in tensors(part)):  # fake ones cannot
                    part.to(device=device, dtype=self._cast())
                    reconnect(part)
                # TorchScript has no requires_grad_ of modules; DistributedDataParallel is not copied without gradients.
                for parameter in () if data_parallel(part) else part.parameters():
                    if has_backward or id(parameter) not in trained:
                        parameter.requires_grad_(has_backward)
        placed: tuple[tuple[Any, ...], dict[str, Any]] = mapped(partial(self._placed, device), (args, kwargs))
        return placed

    def _cast(self) -> torch.dtype | None:
        """Return the type to cast floating inputs to; None if ``inputs`` makes them in it."""
        return getattr(torch, self.fields.dtype) if self.fields.dtype and "dtype" not in self.file.filled else None

    def _placed(self, device: str, tensor: Tensor) -> Tensor:
        """Return an input on the device, in the type and the layout of the case."""
        cast = self._cast() if tensor.is_floating_point() else None
        placed = laid_out(tensor.detach().to(device=device, dtype=cast), self.fields.layout)
        return placed.requires_grad_(tensor.requires_grad) if self.fields.pass_ != "fwd" else placed

    # --- calls ---

    @property
    def place(self) -> dict[str, int]:
        """The rank of this process and the number of ranks, for functions that name them; {} without ranks."""
        here = ranks.current
        return {"rank": here.rank, "world_size": here.count} if "ranks" in self.file.fields else {}

    def call(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
        """Bind ``function`` to the inputs.

        Raises Unsupported if it lacks an option that is not at its default, TypeError if it does not take the inputs.

        A class is made as the task makes its ``Model``, and takes the place of that among the inputs.
        """
        given = args, kwargs = self.drawn.arguments
        columns: dict[str, Scalar] = {}
        if isinstance(cls := getattr(function, "of_module", ...), type):
            module, columns["weights"] = self._like(cls, args[0])
            given = args[1:], kwargs  # the module is its own
            args = (module, *args[1:])
        elif cls is ... and hasattr(self.module, "_adapted"):
            function = self.module._adapted(function)
        options = options_for(function, {**self.options(), **self.place}, len(args))
        for name, value in self.options().items():
            if name not in options and value != self.file.fields[name]:
                raise Unsupported(f"it takes no {name}, and workload.{name}={as_typed(value)} is not the default")
        _check_call(function, args, {**kwargs, **options})
        bound = partial(function, **options)
        if self.fields.pass_ == "fwd":
            return Call(run=partial(bound, *args, **kwargs), arguments=given, columns=columns)
        is_bwd = self.fields.pass_ == "bwd"
        let_backward_reuse_buffers(not is_bwd)
        run = (GradientsAlone if is_bwd else Gradients)(bound, args, kwargs, self.fields.layout, self.drawn.paths)
        return Call(run=run, arguments=given, reads_inputs=not is_bwd, columns=columns)

    def _like(self, cls: type, model: Any) -> tuple[Any, str]:
        """Return a module of ``cls``, made as ``model`` was, and whether it has its weights. Raises Unsupported."""
        if not hasattr(self.module, "_built"):
            raise Unsupported(f"{cls.__name__} is a class, which a task with a class Model makes; name a function")
        init = self.module._init
        _check_call(cls, *(((), init) if isinstance(init, dict) else (init, {})))
        device, seed = self.drawn.made_by
        with _seeds(device, seed):
            module = self.module._built(cls, seed)
        module.to(device=device, dtype=self._cast()).requires_grad_(self.fields.pass_ != "fwd").train(model.training)
        return module, copy_weights(model, module)

    # --- what is right ---

    @property
    def reference(self) -> partial[Any]:
        """The function that says what is right, with its options."""
        function = self.module.reference
        return partial(function, **self.options(), **options_for(function, self.place))

    def expected_outputs(self, inputs: Sequence[Tensor], *, quick: bool = False) -> Outputs:
        """Return the judge of the outputs of an implementation; ``quick``: by half of the runs of the reference."""
        loader.restore_functions()
        args, kwargs = self.drawn.arguments
        is_public = hasattr(self.module.reference, "of_module")  # public tasks compare what is returned
        if "check" in self.file.parts:
            return FileCheck(self._check, self.reference, cloned((args, kwargs)), in_place=not is_public)
        reference: Any = self.reference
        _check_call(reference.func, args, {**kwargs, **reference.keywords})
        if self.fields.pass_ != "fwd":
            reference = WithGradients(reference, outputs=self.fields.pass_ == "fwd_bwd")
        words: dict[str, Any] = {"atol": self.file.atol, "rtol": self.file.rtol}
        if "tolerance" in self.file.parts:
            words = self.module.tolerance(**options_for(self.module.tolerance, self._fields()))
        state = self.fields.pass_ != "bwd" and not is_public  # a backward alone begins after the changes of a forward
        judge = Judge(reference, args, kwargs, tf32=self.tf32, quick=quick, state=state, **words)
        self.drawn.paths = getattr(reference, "paths", ())
        self.drawn.outside_bytes = judge.output_bytes + getattr(reference, "upstream_bytes", 0)
        return judge

    def _check(self, inputs: Any, outputs: Any) -> object:
        """Call ``check`` of the file, although an implementation may have replaced what it imports."""
        loader.restore_functions()
        return self.module.check(inputs, outputs)

    def work(self) -> Work:
        """Return the operations and the least traffic of the definition, as far as they are known (0: unknown)."""
        floating = (str(tensor.dtype) for tensor in self.drawn.tensors if tensor.is_floating_point())
        dtype = next(floating, "torch.float32")
        return Work(self._flops, self._bytes(), dtype.removeprefix("torch."), self.tf32)

    def needed(self, device: str) -> tuple[int, int, int]:
        """Return the bytes of the inputs with weights, of the outputs, and of the check in float64 beside both.

        The file runs on tensors without memory. Raises what it raises, also where it reads a value of a tensor.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True), RecurrentByShape():
            args, kwargs = self.draw(device, 0)
            returned = self.reference(*args, **kwargs)
            inputs, outputs = map(tensors, ((args, kwargs), returned))
            numbers = (sum(x.numel() for x in group if x.is_floating_point()) for group in (inputs, *[outputs] * DRAWS))
            return sum(x.nbytes for x in inputs), sum(x.nbytes for x in outputs), 8 * sum(numbers)

    @cached_property
    def _flops(self) -> int:
        if "flops" in self.file.parts:
            return int(self.module.flops(**options_for(self.module.flops, self._fields())))
        args, kwargs = self.drawn.arguments
        return flops(self.reference, args, kwargs, self.fields.pass_)

    def _bytes(self) -> int:
        if "bytes" in self.file.parts:
            return int(self.module.bytes(**options_for(self.module.bytes, self._fields())))
        if any("sparse" in str(tensor.layout) for tensor in self.drawn.tensors):
            return 0
        storages = {tensor.untyped_storage().data_ptr(): int(tensor.nbytes) for tensor in self.drawn.tensors}
        return sum(storages.values()) + self.drawn.outside_bytes

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self.fields, name) for name in (*self.file.fields, "dtype")} | self.place


def workload_of(choice: Choice) -> Any:
    """Return the workload of ``choice``. Raises LookupError, BadInput."""
    return own_workload.workload_of(choice, OwnOperation)


@dataclass(frozen=True)
class FileCheck(Outputs):
    """Judges outputs by the function ``check(inputs, outputs)`` of the user's file: None, or what is wrong."""

    function: Callable[[Any, Any], object]
    reference: Callable[..., Any]
    arguments: tuple[Sequence[Any], Mapping[str, Any]]  # arguments of both, as they were before a call
    takes_whole: ClassVar[bool] = True  # bench has no such check
    in_place: bool = True  # a call that returns no tensor leaves its outputs in the arguments that it changes

    def check(self, outputs: Any, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Call the function with the inputs, as they were before a call, and ``outputs``.

        A failed assertion means wrong. So does another exception, unless the outputs of the reference raise one too.
        Raises TypeError if the function returns neither None nor text: a bool may mean right or wrong.
        """
        given = returned(outputs, changed if self.in_place else None)
        try:
            reason = self._said(given)
        except AssertionError as error:
            reason = shorten(str(error), 300, placeholder=" ...") or "an assertion of check() fails"
        except Exception as error:
            if ranks.current.count > 1 or classify(error, "check").status != "error":
                raise
            args, kwargs = cloned(self.arguments)
            self._said(self.reference(*args, **kwargs))  # it raises if the fault is in the check
            text = shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
            reason = f"check() raises for this result, and not for the reference's: {text}"
        if not isinstance(reason, str | None):
            advice = "return None if the outputs are right, else what is wrong as text"
            raise TypeError(f"check() returned a {type(reason).__name__}; {advice}")
        return CheckResult(compared=False, tolerance=["by check() of the file"], reason=reason or "")

    def _said(self, outputs: Any) -> object:
        args, kwargs = cloned(self.arguments)
        return self.function((*args, *kwargs.values()), outputs)

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Call the function with the tensor, or with a tuple of several tensors."""
        plain = tuple(tensors(outputs))
        return self.check(plain[0] if len(plain) == 1 else plain)


def copy_weights(model: torch.nn.Module, other: torch.nn.Module) -> str:
    """Give the parameters and buffers of ``other`` the values of those of ``model``, if names and shapes are the same.

    Return the column ``weights``; "" if neither has any.
    """
    states = (module.state_dict(keep_vars=True) for module in (model, other))
    weights, others = ({name: x for name, x in state.items() if isinstance(x, torch.Tensor)} for state in states)
    if {name: weight.shape for name, weight in weights.items()} != {name: x.shape for name, x in others.items()}:
        return OWN_WEIGHTS
    with torch.no_grad():
        for name, weight in weights.items():
            others[name].copy_(weight)
    return "those of the reference" if weights else ""


def _check_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, which says what is given, if a class or a plain function cannot be called with these."""
    if isinstance(function, FunctionType | type) and not hasattr(function, "__signature__"):
        signature = inspect.signature(function, follow_wrapped=False)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            named = (f"{name}={type(value).__name__}" for name, value in kwargs.items())
            given = ", ".join([*(type(value).__name__ for value in args), *named])
            advice = "; inputs() returns a list, which is one argument: return a tuple" * ([*map(type, args)] == [list])
            raise TypeError(f"{error}: {function.__name__}{signature} is called with ({given}){advice}") from None


@contextmanager
def _seeds(device: str, seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and ``random``, make tensors on ``device``, and restore all of it."""
    if device == "cuda":
        torch.cuda.init()
    with generators_seeded(seed), torch.device(device):
        yield
