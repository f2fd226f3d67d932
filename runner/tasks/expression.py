"""Expressions over named numbers, parsed as Python, of which Python evaluates nothing."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Number = int | float
Operators = Mapping[type[ast.operator], Callable[[Any, Any], Number]]
Expression = Callable[[Mapping[str, Any]], Any]  # from names to the value
OPERATORS: Operators = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: Mapping[str, Callable[..., Number]] = {"ceil": math.ceil, "min": min, "max": max}
ALLOWED = "numbers, names, + - * / // %, ceil(), min() and max()"


def expression(tree: ast.AST, operators: Operators) -> Expression:
    """Return the function that ``tree`` describes. Raises ValueError if a part of it is not allowed."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return lambda names: value
        case ast.Name(id=name):
            return lambda names: names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = expression(operand, operators)
            return lambda names: -number(names)
        case ast.BinOp(left=left, op=op, right=right) if compute := operators.get(type(op)):
            first, second = expression(left, operators), expression(right, operators)
            return lambda names: compute(first(names), second(names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            items = [expression(arg, operators) for arg in args]
            return lambda names: FUNCTIONS[name](*(item(names) for item in items))
    raise ValueError(f"{ast.unparse(tree)} is not allowed; allowed: {ALLOWED}")
