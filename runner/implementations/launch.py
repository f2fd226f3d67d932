"""The launch of a user's kernel in CUDA C++: a YAML file beside the ``.cu`` says grid, block and arguments.

Its expressions are read as syntax trees of Python, of which a few kinds are allowed, and never evaluated as Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from runner.experiment import schema
from runner.experiment.schema import BadInput
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from runner.kernels.cuda_kernel import Kernel

Number = int | float
Extents = int | str | tuple[int | str, ...]  # expressions along x, y and z
TYPE = "T"  # stands for the C++ type of the first tensor in the name of a kernel
TYPES = {"float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16"}
OUTPUT = "y"  # the name of the result
MOST_AXES = 3
OPTIONAL: Mapping[str, Any] = {  # fields that a launch may leave out
    "shared": 0, "output": None, "tensors": None, "kernel": None, "dtype": "float32", "args": {},
}  # fmt: skip
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: Mapping[str, Callable[..., Number]] = {"ceil": math.ceil, "min": min, "max": max}
ATTRIBUTES: Mapping[str, Callable[[Any], Any]] = {  # of a tensor
    "shape": lambda x: tuple(x.shape),
    "stride": lambda x: tuple(x.stride()),
    "numel": lambda x: x.numel(),
}
ALLOWED = "numbers, names, x.shape[0], x.stride[0], x.numel, + - * / // %, ceil(), min() and max()"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The fields of the YAML file."""

    grid: Extents  # blocks
    block: Extents  # threads
    shared: int | str  # bytes of dynamic shared memory
    arguments: tuple[int | str, ...]  # of the kernel in order: names of tensors, y, and whole numbers
    output: tuple[int | str, ...] | None  # shape of y; None: that of the first tensor
    tensors: tuple[str, ...] | None  # names of the tensors in order; None: those of the workload's page
    kernel: str | None  # C++ name, in which {T} and {an argument} are replaced; None: the name in impl.path
    dtype: Literal["float32", "float64", "float16", "bfloat16"]  # of the tensors, if the name has no {T}
    args: Mapping[str, int]  # arguments that impl.args may give, with their defaults

    def __post_init__(self) -> None:
        for name, extents in (("grid", self.grid), ("block", self.block)):
            if not 1 <= len(_axes(extents)) <= MOST_AXES:
                raise ValueError(f"{name}: {extents} is not allowed; give one to three numbers, as in [32, 8]")
        for name, text in self.expressions():
            if why := _refused(_tree(text)):
                raise ValueError(f"{name}: {text}: {why} is not allowed; there are {ALLOWED}")

    def expressions(self) -> list[tuple[str, int | str]]:
        """Return all expressions, each with its field."""
        fields = ("grid", "block", "shared", "arguments", "output")
        return [(name, one) for name in fields for one in _axes(getattr(self, name) or ())]

    def unknown(self, known: Sequence[str]) -> str:
        """Return which name in the expressions is none of ``known``, in one line; "" if there is none."""
        for name, text in self.expressions():
            tree = _tree(text)
            called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and id(node) not in called and node.id not in known:
                    return f"{name}: {text}: no such name {node.id}; {schema.choices(node.id, known)}"
        return ""


@dataclass(frozen=True)
class Layout:
    """A launch for given tensors."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[int | str, ...]  # whole numbers, and names of tensors
    shape: tuple[int, ...]  # of y


@cache
def read(path: Path) -> Launch:
    """Return the launch in ``path``. Raises BadInput."""
    if not path.is_file():
        raise BadInput(f"impl.launch: there is no file {path}; write grid, block and arguments of the kernel into it")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path}: give fields, as in grid: ceil(x.numel / 256)")
    try:
        return schema.build(Launch, {**OPTIONAL, **values}, "")
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def lay_out(launch: Launch, tensors: Mapping[str, Any], numbers: Mapping[str, Number]) -> Layout:
    """Return ``launch`` for these tensors, by name, and the numbers that it may name. Raises ValueError."""
    names = {**numbers, **tensors}
    first = next(iter(tensors.values()))
    shape = tuple(first.shape) if launch.output is None else tuple(_whole(one, names) for one in launch.output)
    named = {*tensors, OUTPUT}
    arguments = (str(one) if one in named else _whole(one, names) for one in launch.arguments)
    grid, block = (_three(extents, names) for extents in (launch.grid, launch.block))
    return Layout(grid, block, _whole(launch.shared, names), tuple(arguments), shape)


def function(
    launch: Launch, source: Path, name: str, tensors: Sequence[str], args: Mapping[str, Any]
) -> Callable[..., Tensor]:
    """Return the function that launches the kernel ``name`` of ``source`` on tensors, which it names ``tensors``."""
    from runner.kernels.cuda_build import kernel

    given = {**launch.args, **args}
    layouts: dict[object, tuple[Layout, Kernel]] = {}

    def prepared(inputs: Sequence[Tensor], options: Mapping[str, Any]) -> tuple[Layout, Kernel]:
        first = inputs[0]
        dtype = str(first.dtype).removeprefix("torch.")
        if dtype not in TYPES or (f"{{{TYPE}}}" not in name and dtype != launch.dtype):
            raise Unsupported(f"{source.name} takes {launch.dtype}, not {dtype}; dtype: in its launch says which")
        typed = {TYPE: TYPES[dtype], **given}
        built = kernel(source.absolute(), _filled(name, typed), "nvrtc", first.device)
        numbers = {key: value for key, value in {**options, **given}.items() if isinstance(value, Number)}
        return lay_out(launch, dict(zip(tensors, inputs, strict=True)), numbers), built

    def call(*inputs: Tensor, **options: Any) -> Tensor:
        import torch

        inputs = tuple(one.contiguous() for one in inputs)
        key = (*((one.shape, one.dtype, one.device) for one in inputs), *sorted(options.items()))
        if key not in layouts:
            layouts[key] = prepared(inputs, options)
        layout, built = layouts[key]
        y = torch.empty(layout.shape, dtype=inputs[0].dtype, device=inputs[0].device)
        pointers = {OUTPUT: y.data_ptr(), **{one: x.data_ptr() for one, x in zip(tensors, inputs, strict=True)}}
        arguments = (pointers[one] if isinstance(one, str) else one for one in layout.arguments)
        if 0 not in layout.grid:
            built(layout.grid, layout.block, *arguments, shared=layout.shared)
        return y

    return call


def _filled(name: str, values: Mapping[str, Any]) -> str:
    """Return the C++ name of a kernel with ``values`` for the names in braces. Raises ValueError."""
    if missing := [one for one in re.findall(r"\{(\w+)\}", name) if one not in values]:
        raise ValueError(f"kernel: {name}: {missing[0]} is neither {TYPE} nor an argument under args")
    return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), name)


def _axes(extents: Extents | tuple[int | str, ...]) -> tuple[int | str, ...]:
    return extents if isinstance(extents, tuple) else (extents,)


def _three(extents: Extents, names: Mapping[str, Any]) -> tuple[int, int, int]:
    x, y, z = (*(_whole(one, names) for one in _axes(extents)), 1, 1)[:MOST_AXES]
    return x, y, z


# --- expressions ---


def _tree(text: int | str) -> ast.expr:
    """Return the syntax tree of an expression. Raises ValueError."""
    try:
        return ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text}: cannot be read; there are {ALLOWED}") from None


def _refused(tree: ast.AST) -> str:
    """Return the part of an expression that is not allowed; "" if all is."""
    match tree:
        case ast.Constant(value=int() | float()) | ast.Name():
            inner: list[ast.AST] = []
        case ast.UnaryOp(op=ast.USub(), operand=one):
            inner = [one]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            inner = [*args]
        case ast.Attribute(value=ast.Name(), attr="numel"):
            inner = []
        case ast.Subscript(value=ast.Attribute(value=ast.Name(), attr="shape" | "stride"), slice=one):
            inner = [one]
        case _:
            return ast.unparse(tree)
    return next(filter(None, map(_refused, inner)), "")


def _whole(text: int | str, names: Mapping[str, Any]) -> int:
    """Return the value of an expression. Raises ValueError if it is no whole number, or cannot be computed."""
    try:
        value = _value(_tree(text), names)
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{text}: cannot be computed: {type(error).__name__}: {error}") from None
    if not isinstance(value, Number) or int(value) != value:
        raise ValueError(f"{text}: is {value}, not a whole number; write ceil(...) or //")
    return int(value)


def _value(tree: ast.AST, names: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=one):
            return -_value(one, names)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*(_value(one, names) for one in args))
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return ATTRIBUTES[attribute](names[name])
        case ast.Subscript(value=whole, slice=place):
            return _value(whole, names)[_value(place, names)]
    raise TypeError(ast.unparse(tree))
