"""Check the values of a YAML against the fields of a dataclass, and find the dataclass of an option.

Each option of a config group is a frozen dataclass with the fields of its YAML. The types are the rules: ``Size`` is a
whole number of at least 1, ``Literal`` lists the allowed words, ``float`` takes whole numbers too. A rule over several
fields stands in ``__post_init__`` and raises ValueError. A field named like a Python keyword ends in an underscore,
which the YAML leaves out.
"""

from __future__ import annotations

import argparse
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Line = Annotated[str, "on one line"]  # it is written to a script, where a second line would be a command
CONSTRAINTS: dict[str, Callable[[Any], bool]] = {  # by the words of an annotation
    "at least 1": lambda value: 1 <= value < 2**63,  # larger numbers fit neither torch nor JSON
    "at least 20": lambda value: value >= 20,
    "at least 0": lambda value: 0 <= value < inf,
    "above 0": lambda value: 0 < value < inf,  # neither inf nor nan
    "on one line": lambda value: value.isprintable(),
}
SIZE = re.compile(r"([0-9]{1,18})([kKM])|([0-9]{1,4})\*\*([0-9]{1,3})")  # 4k, 2**12
UNITS = {"k": 1024, "K": 1024, "M": 1024**2}


def build(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """Return an instance of ``cls`` with the YAML's ``values``. ``where`` is their place in the config, "" at the top.

    Raises:
        BadInput: a field is unknown, missing or out of its allowed values; the message names it.

    """
    rules = rules_of(cls)  # type: ignore[arg-type]  # mypy takes a class for unhashable
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
    """Return the fields of ``instance`` under their names in the YAML: the inverse of ``build``."""
    rules = rules_of(type(instance))  # type: ignore[arg-type]  # as above
    return {name: getattr(instance, attribute) for name, (attribute, _) in rules.items()}


@cache
def rules_of(cls: type) -> dict[str, tuple[str, Any]]:
    """Return the attribute and the type of each field, by its name in the YAML."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name.rstrip("_"): (field.name, hints[field.name]) for field in fields(cls)}


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # what reading JSON raises that is no such record


def check(cls: type, values: Mapping[str, object]) -> None:
    """Raise TypeError unless each of ``values``, read from JSON, has the type of that attribute of ``cls``."""
    for name, test in _tests(cls).items():
        if name in values and not test(values[name]):
            raise TypeError(f"{name}: {values[name]!r} has the wrong type")


@cache
def _tests(cls: type) -> dict[str, Callable[[object], bool]]:
    return {name: _test(hint) for name, hint in typing.get_type_hints(cls, include_extras=True).items()}


def _checked(value: object, rule: Any, where: str) -> object:
    """Return ``value`` as ``rule`` has it: 1 as 1.0, 4k as 4096, a list as a tuple. Raises BadInput."""
    if type(value) is int and (rule is float or (get_origin(rule) is Annotated and float in get_args(rule))):
        value = float(value)
    test = _test(rule)
    if isinstance(value, str) and not test(value) and (number := size(value)) is not None and test(number):
        return number
    if test(value):
        return tuple(value) if isinstance(value, list) else value
    allowed = f"give {words(rule)}"
    if get_origin(rule) is Literal:
        allowed = choices(str(value), map(str, get_args(rule)))
    elif isinstance(value, float) and not isfinite(value):
        allowed = allowed.replace("a number", "a finite number")
    raise BadInput(f"{where}: {'null' if value is None else repr(value)} is not allowed; {allowed}")


def size(word: str) -> int | None:
    """Return the number that ``word`` writes with k = 1024, M = 1024^2 or a power, as 4k or 2**12; else None."""
    if not (match := SIZE.fullmatch(word)):
        return None
    count, unit, base, power = match.groups()
    return int(count) * UNITS[unit] if unit else int(base) ** int(power)


@cache
def _test(rule: Any) -> Callable[[object], bool]:
    """Return the test of a value against ``rule``. It is made once, since a grid has values by the ten thousand."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Annotated:
        kind, constraint = _test(args[0]), CONSTRAINTS[args[1]]
        return lambda value: kind(value) and constraint(value)
    if origin is Literal:
        return lambda value: any(type(value) is type(word) and value == word for word in args)
    if origin in (Union, types.UnionType):
        if not any(map(get_origin, args)):
            return lambda value: type(value) in args
        arms = [_test(arm) for arm in args]
        return lambda value: any(arm(value) for arm in arms)
    if origin in (tuple, Sequence):
        item = _test(args[0])
        return lambda value: isinstance(value, list | tuple) and all(map(item, value))
    if origin is Mapping:
        item = _test(args[1])
        return lambda value: isinstance(value, Mapping) and all(map(item, value.values()))
    return lambda value: type(value) is rule or rule is Any


def words(rule: Any) -> str:
    """Return what ``rule`` allows, as it follows the word "give"."""
    origin, args = get_origin(rule), get_args(rule)
    if origin is Annotated:
        return f"{words(args[0])} {args[1]}"
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(map(words, args))
    if origin is Mapping:
        return f"fields, each {words(args[1])}"
    if origin is tuple:
        return f"a list, each item {words(args[0])}"
    return WORDS[rule]


CONF = Path(__file__).parents[1] / "config" / "conf"  # a link to conf/, or its copy in an installed package


@cache
def exists(package: str, name: str) -> bool:
    """Return whether ``package`` has a module called ``name``. Only the package is imported."""
    return name.isidentifier() and find_spec(f"{package}.{name}") is not None


def names(package: str) -> list[str]:
    """Return the names of the modules of ``package``. Only the package is imported."""
    return sorted(module.name for module in iter_modules(import_module(package).__path__))


def find(package: str, name: str, *methods: str) -> type:
    """Return the class of the module ``package.name`` that is called like the module, in CamelCase.

    Raises:
        LookupError: there is no such module or class, it cannot be imported, it is no dataclass of its own, or it
            lacks one of ``methods``; the message names the file.

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
    for attribute, cls in vars(module).items():
        if attribute.lower().rstrip("_") == wanted and isinstance(cls, type):
            break
    else:
        raise LookupError(f"no class called {wanted} in {file}")
    if "__dataclass_fields__" not in vars(cls):  # inherited fields are not all of them
        raise LookupError(f"class {cls.__name__} in {file} must be a dataclass whose fields are those of its YAML")
    missing = {*getattr(cls, "__abstractmethods__", ()), *(method for method in methods if not hasattr(cls, method))}
    if missing:
        raise LookupError(f"class {cls.__name__} in {file} must also have {', '.join(sorted(missing))}")
    return cls


class BadInput(Exception):
    """A mistake of the user. Nothing has been started, and the message is all that is printed: one line."""

    def __str__(self) -> str:
        """Return the message. Newlines and escape codes, as in a key of a YAML file, are escaped."""
        return "".join(one if one.isprintable() else repr(one)[1:-1] for one in super().__str__())


class Parser(argparse.ArgumentParser):
    """Parser of a sub-command's arguments that raises BadInput at a mistake.

    Args:
        examples: shown below the help, as they are written; then the description is too.
        options: those of argparse.ArgumentParser.

    """

    def __init__(self, *, examples: str | None = None, **options: Any) -> None:
        if examples:
            options |= {"epilog": f"examples:{examples}", "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Raise BadInput."""
        raise BadInput(message)


MOST_SLOWDOWN = 10.0


def share(text: str, name: str) -> float:
    """Return 0.03 for ``3%`` or ``0.03``. Raises BadInput, whose message begins with ``name``."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%?)", text.strip())
    found = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match and not match[2] and found >= 1:
        raise BadInput(f"{name}{text}: write {text}% or {found / 100:g}")
    if not 0 < found <= MOST_SLOWDOWN:
        raise BadInput(f"{name}{text}: give a share above 0, as in 3% or 0.03")
    return found


ALSO = {"gpu": "cuda", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def choices(asked: str, allowed: Iterable[str]) -> str:
    """Return ``did you mean mlp? One of: ...``: the nearest of ``allowed``, then all of them."""
    names = sorted(set(allowed))
    near = [ALSO[asked]] if ALSO.get(asked) in names else difflib.get_close_matches(asked, names, 1)
    return (f"did you mean {near[0]}? One of: " if near else "one of: ") + ", ".join(names)
