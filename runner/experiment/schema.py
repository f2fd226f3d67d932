"""The only place that says what is valid: a mapping from the YAML against the fields of a dataclass.

Each option of a config group is a frozen dataclass whose fields are the YAML's fields. Their types are the
rules: ``Size`` is a whole number of at least 1, ``Literal`` lists the allowed words, ``float`` takes whole
numbers too. A rule that spans fields stands in ``__post_init__`` and raises ValueError. A field named like a
Python keyword ends in an underscore that the YAML does without.
"""

from __future__ import annotations

import argparse
import difflib
import types
import typing
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

T = TypeVar("T")

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
Line = Annotated[str, "on one line"]  # a further one would be a command where it ends up in a script
SENSE: dict[str, Callable[[Any], bool]] = {  # what an annotation promises, and how it is kept
    "at least 1": lambda value: value >= 1,
    "at least 20": lambda value: value >= 20,
    "at least 0": lambda value: 0 <= value < inf,
    "above 0": lambda value: 0 < value < inf,  # no clock waits for ever, and nan is neither
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


CONF = (
    Path(__file__).parents[1] / "config" / "conf"
)  # the folder conf/ of the repository, or its copy in an installed package


def exists(package: str, name: str) -> bool:
    """True if ``package`` has a module called ``name``; nothing is imported but the package."""
    return name.isidentifier() and find_spec(f"{package}.{name}") is not None


def names(package: str) -> list[str]:
    """The modules that ``package`` has; nothing is imported but the package."""
    return sorted(module.name for module in iter_modules(import_module(package).__path__))


def find(package: str, name: str, *must: str) -> type:
    """The class of module ``package.name`` that is called as the module is, in CamelCase; it has the methods ``must``.

    Raises:
        LookupError: there is no such module or class, it cannot be imported, or no instance can be made of it; the
            message names the file.

    """
    file = f"{package.replace('.', '/')}/{name}.py"
    if not exists(package, name):
        raise LookupError(f"no file {file}")
    try:
        module = import_module(f"{package}.{name}")
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise LookupError(f"{file}{line}: {type(error).__name__}: {getattr(error, 'msg', None) or error}") from error
    wanted = name.replace("_", "")
    for attribute, value in vars(module).items():
        if attribute.lower().rstrip("_") == wanted and isinstance(value, type):
            _check(value, file, must)
            return value
    raise LookupError(f"no class called {wanted} in {file}")


def _check(cls: type, file: str, must: Iterable[str]) -> None:
    """Raise LookupError unless instances of ``cls`` can be made, by its own fields, and can do what they ``must``."""
    if "__dataclass_fields__" not in vars(cls):  # a base's are not all of them
        raise LookupError(f"class {cls.__name__} in {file} must be a dataclass whose fields are those of its YAML")
    lacking = sorted({*getattr(cls, "__abstractmethods__", ()), *(name for name in must if not hasattr(cls, name))})
    if lacking:
        raise LookupError(f"class {cls.__name__} in {file} must also have {', '.join(lacking)}")


class BadInput(Exception):
    """Nothing has been started; the message is the whole answer. Takes one argument, so that it survives pickling."""


class Parser(argparse.ArgumentParser):
    """Parser of a sub-command's arguments; a mistake raises BadInput, as everywhere else."""

    def error(self, message: str) -> NoReturn:
        """Raise BadInput."""
        raise BadInput(message)


NEAR, VERY_NEAR = 0.5, 0.75  # of the letters of both, those in common
ALSO = {"gpu": "cuda", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def choices(asked: str, allowed: Iterable[str], rare: Container[str] = ()) -> str:
    """``did you mean mlp? One of: ...``: the nearest of ``allowed``, then all of them.

    What is seldom meant, ``rare``, has to be very near.
    """
    names = sorted(set(allowed))
    near = difflib.get_close_matches(asked, [name for name in names if name not in rare], 1, NEAR)
    near = difflib.get_close_matches(asked, names, 1, VERY_NEAR) or near
    near = [ALSO[asked]] if ALSO.get(asked) in names else near
    return (f"did you mean {near[0]}? One of: " if near else "one of: ") + ", ".join(names)
