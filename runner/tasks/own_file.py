"""Read a workload in one file of the user's, without importing it: its fields, implementations and optional parts.

    def inputs(rows=4096, cols=4096): return torch.randn(rows, cols), torch.ones(cols)
    def reference(x, w, eps=1e-6): ...
    def fused(x, w, eps=1e-6): ...          # an implementation, as every other public function

Keyword parameters of ``inputs`` and ``reference`` with literal defaults are the fields.
"""

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

from ..records.bad_input import BadInput
from ..records.figures import listed
from ..records.grouping import reachable
from ..records.schema import RANKED
from . import formats
from .formats import FILLED, RESERVED, SHARED
from .syntax import assigned, constant, decorators, names_in, parameters

DType = Literal["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"]
Pass = Literal["fwd", "bwd", "fwd_bwd"]

PARTS = ("inputs", "reference", "flops", "bytes", "check", "tolerance")  # functions that are not implementations
SETTINGS = ("axes", "shapes", "atol", "rtol")  # values at the top of the file
JIT = ("jit", "autotune", "heuristics", "kernel", "perf_report")  # decorators: of kernels for a GPU, and of benchmarks
LAUNCH = ("grid", "block", "arguments", "result", "shared", "include", "cooperative")  # parameters of cuda_kernel
MAKERS = re.compile(r"(.*\.)?cuda_kernel|torch\.compile|(functools\.)?partial")  # of functions
EXAMPLE = "def inputs(rows=4096): return (torch.randn(rows),)"


@dataclass(frozen=True)
class OwnFile:
    """What a workload file declares."""

    path: str  # as typed
    format: str = "file"  # a name of ``formats``
    refused: str = ""  # why it is not a workload, if that costs only its own rows
    fields: Mapping[str, Any] = field(default_factory=dict)  # name → default
    words: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # allowed values of fields with a Literal
    of_inputs: tuple[str, ...] = ()  # fields that ``inputs`` takes
    of_reference: tuple[str, ...] = ()  # fields that ``reference`` takes: options of the implementations
    filled: tuple[str, ...] = ()  # names of FILLED that ``inputs`` takes
    dtype: str | None = None  # default of the parameter dtype
    implementations: tuple[str, ...] = ("reference",)  # and the public functions, in the order of the file
    parts: tuple[str, ...] = ()  # names of PARTS that the file defines
    axes: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Any] = field(default_factory=dict)  # name of a set → values of fields, for each case
    atol: float | None = None
    rtol: float | None = None
    functions: Mapping[str, ast.FunctionDef] = field(default_factory=dict, repr=False)

    @property
    def sizes(self) -> list[str]:
        """The fields of ``inputs`` that hold whole numbers, in order: what ``workload.shape`` sets."""
        return [name for name in self.of_inputs if type(self.fields[name]) is int]

    def takes_inputs(self, name: str) -> bool:
        """Return whether the function ``name`` can take as many arguments as ``reference``; True if unknown."""
        takes, gives = self.functions.get(name), self.functions["reference"]
        if takes is None or gives.args.vararg:
            return True
        tensors = [each.arg for each, _ in parameters(gives) if each.arg not in self.of_reference]
        required = [default for _, default in parameters(gives) if default is None]
        least = [each for each, default in parameters(takes) if default is None]
        most = inf if takes.args.vararg else len([*takes.args.posonlyargs, *takes.args.args])
        return len(least) <= len(tensors) and len(required) <= most


def is_own(name: str) -> bool:
    """Return whether ``workload=<name>`` names a file."""
    return name.endswith((*formats.TASKS, ".task"))


def read(path: str, *, strict: bool = True) -> OwnFile:
    """Return the declarations of the file at ``path``. Raises BadInput, in one line that says what to write.

    If not ``strict``, return a file with the line as ``refused`` instead: it costs only its own rows.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadInput(f"workload={path}: {error.strerror}: give a path that exists, seen from {Path.cwd()}") from None
    try:
        return _read(path, status.st_mtime_ns, status.st_size)
    except BadInput as error:
        if strict:
            raise
        return OwnFile(path, refused=str(error))


@lru_cache(maxsize=256)
def _read(path: str, *version: int) -> OwnFile:
    try:
        task = formats.parse(path)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadInput(f"{path}{line}: {getattr(error, 'msg', error)}") from None
    except OSError as error:
        raise BadInput(f"workload={error.filename or path}: cannot be read: {error.strerror or error}") from None
    tree, is_own = task.tree, task.format == "file"
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "inputs" not in functions:
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        lacks = "inputs() or get_inputs()" if "Model" in classes else "inputs()"
        beside = f" beside class {listed(classes, 3)}" if classes else ""
        if (whole := Path(path).with_name("task.yml")).is_file():
            raise BadInput(f"{path}: it is a part of a task; give workload={whole}")
        raise BadInput(f"{path}: it defines no {lacks}{beside}; write one that returns the arguments, as in {EXAMPLE}")
    if "reference" not in functions:
        raise BadInput(f"{path}: it defines no reference(); write the function that says what is right")
    if is_own and (check := functions.get("check")) and not check.args.vararg and len([*parameters(check)]) < 2:
        raise BadInput(f"{path}: check() gets two arguments; write it as def check(inputs, outputs)")
    given = {parameter.arg: default for parameter, default in parameters(functions["inputs"])}
    of_inputs, words = _fields(path, functions["inputs"])
    of_reference, more = _fields(path, functions["reference"])
    for name in (name for name in of_inputs.keys() & of_reference.keys() if of_inputs[name] != of_reference[name]):
        raise BadInput(f"{path}: {name} has two defaults, in inputs and in reference; give both the same")
    values = _settings(path, tree) if task.format != "kernelbench" else {}  # it may have constants of these names
    axes = values.get("axes") or {}
    named_ranks = {parameter.arg for node in functions.values() for parameter, _ in parameters(node)} & {*RANKED}
    fields = {**of_inputs, **of_reference}
    if named_ranks:
        fields.setdefault("ranks", 2)
    for name in axes if isinstance(axes, dict) else [axes]:
        if name not in (*fields, *SHARED) or not isinstance(axes[name], list | tuple | str):
            example = "axes = {'cols': [1024, 4096]}"
            raise BadInput(f"{path}: axes: {name} is not a field with a list of values; write it as in {example}")
    return OwnFile(
        path=path,
        format=task.format,
        fields=fields,
        words={**words, **more},
        of_inputs=tuple(of_inputs),
        of_reference=tuple(of_reference),
        filled=tuple(name for name in given if name in FILLED),
        dtype=_dtype(path, given.get("dtype")),
        implementations=(
            "reference",
            *(name for name, node in named(tree).items() if is_own and _is_implementation(name, node)),
        ),
        parts=tuple(name for name in PARTS if name in functions),
        axes={name: list(axis) if isinstance(axis, tuple) else axis for name, axis in axes.items()},
        shapes=task.shapes or values.get("shapes", {}),
        atol=values.get("atol"),
        rtol=values.get("rtol"),
        functions=functions,
    )


def _fields(path: str, node: ast.FunctionDef) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Return the fields that ``inputs`` or ``reference`` declares, and the allowed values of each with a Literal.

    Every parameter of ``inputs`` is a field, but for FILLED. Those of ``reference`` may also be tensors.
    """
    fields: dict[str, Any] = {}
    words: dict[str, tuple[Any, ...]] = {}
    of_inputs = node.name == "inputs"
    for parameter, default in parameters(node):
        name = parameter.arg
        if name in (FILLED if of_inputs else RANKED):
            continue
        if default is None and (of_inputs or parameter in node.args.kwonlyargs):
            example = f"{name}=1024" if of_inputs else "eps=1e-6"
            raise BadInput(f"{path}: {node.name}: {name} has no default; give it one, as in {example}")
        if default is None or (not of_inputs and isinstance(default, ast.Constant) and default.value is None):
            continue  # a tensor, or an optional one
        fields[name] = _literal(path, node.name, name, default)
        match parameter.annotation:
            case ast.Subscript(value=ast.Name("Literal") | ast.Attribute(attr="Literal"), slice=slice_):
                items = slice_.elts if isinstance(slice_, ast.Tuple) else [slice_]
                words[name] = tuple(ast.literal_eval(item) for item in items)
    if of_inputs and (node.args.vararg or node.args.kwarg):
        raise BadInput(f"{path}: inputs takes * or ** arguments; name each, with a default")
    return fields, words


def _literal(path: str, function: str, name: str, default: ast.expr) -> Any:
    """Return the value of a default. Raises BadInput unless it is a number, a word or a truth value."""
    if name in RESERVED:
        raise BadInput(f"{path}: {function}: {name} is a field of every workload; give the parameter another name")
    try:
        value = constant(default)
        return tuple(value) if isinstance(value, list) else value
    except ValueError:
        wrong = f"the default of {name} is {ast.unparse(default)}, which is not a literal"
        reason = f"{wrong}; give a number, a word, True or False, as in {name}=1024"
        raise BadInput(f"{path}: {function}: {reason}") from None


def _dtype(path: str, default: ast.expr | None) -> str | None:
    typed = ast.unparse(default) if default else ""
    word = typed.rpartition(".")[2].strip("'\"")
    if default and word not in get_args(DType):
        raise BadInput(f"{path}: inputs: dtype={typed} is not allowed; one of: {', '.join(get_args(DType))}")
    return word or None


def _settings(path: str, tree: ast.Module) -> dict[str, Any]:
    """Return the values of SETTINGS at the top of the file."""
    values: dict[str, Any] = {}
    for name, value in (pair for node in tree.body for pair in assigned(node) if pair[0] in SETTINGS):
        try:
            values[name] = ast.literal_eval(value or name)  # a name is no literal
        except ValueError:
            written = f" = {ast.unparse(value)}" if value else ""
            raise BadInput(f"{path}: {name}{written} is not a literal; write the values") from None
        if name not in ("axes", "shapes") and not (isinstance(values[name], int | float) and values[name] >= 0):
            raise BadInput(f"{path}: {name} = {values[name]!r} is not allowed; give a number of at least 0")
    return values


def _is_implementation(name: str, node: ast.FunctionDef | ast.Assign) -> bool:
    """Return whether a function of the file is one: public, no part of the workload, no kernel and no benchmark."""
    is_jit = isinstance(node, ast.FunctionDef) and not decorators(node).isdisjoint(JIT)
    return not name.startswith("_") and name not in PARTS and not is_jit


def named(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.Assign]:
    """Return the functions of a file by name: ``def f``, ``f = cuda_kernel(...)`` and the like, and ``f = C.apply``."""
    functions: dict[str, ast.FunctionDef | ast.Assign] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign([ast.Name(id=name)], ast.Attribute(attr="apply")):
                functions[name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                if MAKERS.fullmatch(ast.unparse(called)):
                    functions[name] = node
    return functions


def used_code(tree: ast.Module, entries: Sequence[str]) -> ast.Module:
    """Return ``tree`` without functions that ``entries`` do not reach: an edit of one leaves the rows of the others."""
    functions = named(tree)
    others = [node for node in tree.body if node not in functions.values()]
    starts = {*entries}.union(*map(names_in, others))
    reached = reachable(starts, lambda name: names_in(functions[name]) if name in functions else ())
    unused = [node for name, node in functions.items() if name not in reached]
    return ast.Module([node for node in tree.body if node not in unused], [])


def differs(path: Path, other: Path, entries: Sequence[str]) -> bool:
    """Return whether two versions of a file differ in the code that ``entries`` reach. Comments do not count."""
    try:
        codes = [ast.dump(used_code(formats.parse(version).tree, entries)) for version in (path, other)]
    except (OSError, SyntaxError, ValueError):
        return True
    return codes[0] != codes[1]
