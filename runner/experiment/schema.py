"""The only place that says what is valid: a mapping from the YAML against the fields of a dataclass.

Each option of a config group is a frozen dataclass whose fields are the YAML's fields. Their types are the
rules: ``Size`` is a whole number of at least 1, ``Literal`` lists the allowed words, ``float`` takes whole
numbers too. A rule that spans fields stands in ``__post_init__`` and raises ValueError. A field named like a
Python keyword ends in an underscore that the YAML does without.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from math import inf, isfinite
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from runner.experiment.errors import BadInput, choices

T = TypeVar("T")

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
PROGRAM = "for a program"  # what is run, or told to what is run: runner.config.trust asks who says so
Program = Annotated[str, PROGRAM]
Line = Annotated[str, "on one line"]  # a further one would be a command where it ends up in a script
SENSE: dict[str, Callable[[Any], bool]] = {  # what an annotation promises, and how it is kept
    "at least 1": lambda value: value >= 1,
    "at least 20": lambda value: value >= 20,
    "at least 0": lambda value: 0 <= value < inf,
    "above 0": lambda value: 0 < value < inf,  # no clock waits for ever, and nan is neither
    PROGRAM: lambda value: True,
    "on one line": lambda value: value.isprintable(),
}


def build(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """An instance of ``cls`` from the YAML's ``values``, which stand under ``where`` ("" at the top).

    Raises:
        BadInput: a field is unknown, missing or out of its allowed values; the message names it.

    """
    rules = rules_of(cls)  # type: ignore[arg-type]  # mypy holds a class for unhashable
    prefix = f"{where}." if where else ""
    for name in values:
        if name not in rules:
            raise BadInput(f"{prefix}{name}: no such field; {choices(str(name), rules) if rules else 'there are none'}")
    for name in rules:
        if name not in values:
            raise BadInput(f"{prefix}{name}: missing; give it a value with {prefix}{name}=...")
    keywords = {attribute: _checked(values[name], rule, f"{prefix}{name}") for name, (attribute, rule) in rules.items()}
    try:
        return cls(**keywords)
    except ValueError as error:
        raise BadInput(f"{prefix}{error}") from None


def record(instance: object) -> dict[str, Any]:
    """The inverse of ``build``: the instance's fields under the names of the YAML."""
    rules = rules_of(type(instance))  # type: ignore[arg-type]  # as above
    return {name: getattr(instance, attribute) for name, (attribute, _) in rules.items()}


@cache
def rules_of(cls: type) -> dict[str, tuple[str, Any]]:
    """YAML name → (attribute, type) of every field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name.rstrip("_"): (field.name, hints[field.name]) for field in fields(cls)}


def promises(rule: Any, sense: str) -> bool:
    """Whether ``rule``, or a part of it, is annotated with ``sense``."""
    return any(part == sense or promises(part, sense) for part in get_args(rule))


def _checked(value: object, rule: Any, where: str) -> object:
    """``value``, which keeps ``rule``, or BadInput. A whole number is taken for a float."""
    if rule is float and type(value) is int:
        return float(value)
    if get_origin(rule) is Annotated and float in get_args(rule) and type(value) is int:
        value = float(value)
    if not _allows(rule, value):
        text = "null" if value is None else repr(value)
        raise BadInput(f"{where}: {text} is not allowed; {_sentence(rule, value)}")
    return tuple(value) if isinstance(value, list) else value


def _allows(rule: Any, value: object) -> bool:
    return _test(rule)(value)


@cache
def _test(rule: Any) -> Callable[[object], bool]:
    """Tells whether a value keeps ``rule``. Made once a rule, for a grid has values by the ten thousand."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Annotated:
        kind, sense = _test(args[0]), SENSE[args[1]]
        return lambda value: kind(value) and sense(value)
    if origin is Literal:
        return lambda value: any(type(value) is type(word) and value == word for word in args)
    if origin in (Union, types.UnionType):
        arms = [_test(arm) for arm in args]
        return lambda value: any(arm(value) for arm in arms)
    if origin is tuple:
        item = _test(args[0])
        return lambda value: isinstance(value, list | tuple) and all(map(item, value))
    return lambda value: type(value) is rule


def _sentence(rule: Any, asked: object) -> str:
    """What ``rule`` allows, in words."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Literal:
        return choices(str(asked), map(str, args))
    endless = isinstance(asked, float) and not isfinite(asked)
    return f"give {words(rule).replace('a number', 'a finite number') if endless else words(rule)}"


def words(rule: Any) -> str:
    """What ``rule`` allows, as it ends a sentence that begins with "give"."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Annotated:
        return f"{words(args[0])} {args[1]}"
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(map(words, args))
    if origin is tuple:
        return f"a list, each item {words(args[0])}"
    return WORDS[rule]
