"""What the source of a function, an assignment or an expression says, read without running it."""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Number = int | float
Operators = Mapping[type[ast.operator], Callable[[Any, Any], Number]]
OPERATORS: Operators = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # a float, so that a large power overflows at once
}
OF_CONSTANTS = {**OPERATORS, ast.LShift: operator.lshift, ast.Pow: operator.pow}
FUNCTIONS: Mapping[str, Callable[..., Number]] = {"ceil": math.ceil, "min": min, "max": max}
ALLOWED = "numbers, names, + - * / // %, ceil(), min() and max()"


def parameters(node: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield each parameter with its default, None without one."""
    positional = [*node.args.posonlyargs, *node.args.args]
    missing = len(positional) - len(node.args.defaults)
    yield from zip(positional, [*[None] * missing, *node.args.defaults], strict=True)
    yield from zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)


def decorators(node: ast.FunctionDef) -> set[str]:
    """Return the names of a function's decorators, without modules and arguments."""
    return {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}


def constant(node: ast.expr) -> Any:
    """Return the value of a number, word, truth value, or tuple or list of these. Raises ValueError for another one.

    Arithmetic of numbers is computed: ``4 * 1024``.
    """
    match node:
        case ast.BinOp():
            try:
                return computed(node, {}, OF_CONSTANTS)
            except (ArithmeticError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(str(error)) from None
        case ast.Tuple(items) | ast.List(items):
            values = [constant(item) for item in items]
            if all(isinstance(value, bool | int | float | str) for value in values):
                return values if isinstance(node, ast.List) else tuple(values)
        case _ if isinstance(value := ast.literal_eval(node), bool | int | float | str):
            return value
    raise ValueError(ast.unparse(node))


def assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each name that an assignment gives a value, with the value; None if it is a part of one: ``a, b = c``."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    value = getattr(node, "value", None)
    for target in targets:
        match target, value:
            case ast.Name(name), _:
                yield name, value
            case ast.Tuple(names), ast.Tuple(values) if len(names) == len(values):
                yield from ((ast.unparse(name), item) for name, item in zip(names, values, strict=True))
            case ast.Tuple(names), _:
                yield from ((ast.unparse(name), None) for name in names)


def names_in(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the names that ``node`` reads or writes, or only those of one ``context``."""
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, context)}


def computed(tree: ast.AST, names: Mapping[str, Any], operators: Operators = OPERATORS) -> Any:
    """Return the value of an expression of ``names``. Raises ValueError if a part of it is not allowed."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -computed(operand, names, operators)
        case ast.BinOp(left=left, op=op, right=right) if compute := operators.get(type(op)):
            return compute(computed(left, names, operators), computed(right, names, operators))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            return FUNCTIONS[name](*(computed(arg, names, operators) for arg in args))
    raise ValueError(f"{ast.unparse(tree)} is not allowed; allowed: {ALLOWED}")
