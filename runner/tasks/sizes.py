"""How large a workload in a file is, by its source. Nothing of it runs, so a plan needs neither torch nor trust."""

import ast
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from .own_file import OwnFile
from .syntax import computed

# Functions of torch that make a tensor of a shape, given as numbers, as a tuple or by name.
MAKERS = {"randn", "rand", "randint", "ones", "zeros", "empty", "full", "normal", "arange", "randperm"}
UNKNOWN = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)  # what a value cannot be computed by


def numbers(file: OwnFile, fields: Mapping[str, Any]) -> int:
    """Count the elements of the tensors and modules that ``inputs`` makes from ``fields``; 0 if unknown.

    It reads shapes that are written as expressions of the fields. A module, as ``Linear(dim, 4 * dim)``, counts as the
    product of its whole numbers.
    """
    values = {**file.fields, **fields}
    total = 0
    for statement in file.functions["inputs"].body if "inputs" in file.functions else ():
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                total += _made(node, values)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                with suppress(*UNKNOWN):
                    values[name] = _value(value, values)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=items)):
                for target, item in zip(targets, items, strict=False):
                    with suppress(*UNKNOWN):
                        values[ast.unparse(target)] = _value(item, values)
    return total


def stated(file: OwnFile, name: str, fields: Mapping[str, Any]) -> float | None:
    """Return the value of ``flops`` or ``bytes`` of the file for ``fields``; None if it is more than an expression."""
    match file.functions.get(name):
        case ast.FunctionDef(body=[*_, ast.Return(value=ast.expr() as value)]):
            with suppress(*UNKNOWN):
                return float(computed(value, {**file.fields, **fields}))
    return None


def _made(node: ast.Call, values: Mapping[str, Any]) -> int:
    called = ast.unparse(node.func).rpartition(".")[2]
    if called not in MAKERS and not called[:1].isupper():
        return 0
    given = [*node.args, *(word.value for word in node.keywords if word.arg in ("size", "shape"))]
    shapes, sizes = list[int](), list[int]()
    for item in given:
        with suppress(*UNKNOWN):
            value = _value(item.value if isinstance(item, ast.Starred) else item, values)
            (shapes if isinstance(value, tuple) else sizes).append(math.prod(_whole(value)))
    return max(shapes) if shapes else math.prod(sizes) if sizes else 0


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, values) for item in node.elts)
    return computed(node, values)


def _whole(value: Any) -> Iterator[int]:
    """Yield each number as a whole one, and 1 for what is not a size."""
    for each in value if isinstance(value, tuple) else (value,):
        yield int(each) if isinstance(each, int | float) and not isinstance(each, bool) and each >= 1 else 1
