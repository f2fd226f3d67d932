"""Check the values of a YAML against the fields of a dataclass, and find the dataclass of an option.

Each option of a config group is a frozen dataclass with the fields of its YAML. The types are the rules: ``Size`` is a
whole number of at least 1, ``Literal`` lists the allowed words, ``float`` takes whole numbers too. A rule over several
fields stands in ``__post_init__`` and raises ValueError. A field named like a Python keyword ends in an underscore,
which the YAML leaves out.
"""

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import inf, isfinite
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from .bad_input import BadInput, choices
from .figures import as_typed

T = TypeVar("T")

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
OneLine = Annotated[str, "on one line"]  # it is written to a script, where a second line would be a command
CONSTRAINTS: dict[str, Callable[[Any], bool]] = {  # by the words of an annotation
    "at least 1": lambda value: 1 <= value < 2**63,  # larger numbers fit neither torch nor JSON
    "at least 20": lambda value: value >= 20,
    "at least 0": lambda value: 0 <= value < inf,
    "above 0": lambda value: 0 < value < inf,  # neither inf nor nan
    "that is not empty": lambda value: value != "",
    "on one line": lambda value: value.isprintable(),
}
RANKED = ("rank", "world_size")  # what the worker fills in: fields of a workload, parameters of functions in a file
SIZE = re.compile(r"([0-9]{1,18})([kKM])|([0-9]{1,4})\*\*([0-9]{1,3})")  # 4k, 2**12
UNITS = {"k": 1024, "K": 1024, "M": 1024**2}


def build(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """Return an instance of ``cls`` with the YAML's ``values``. ``where`` is their place in the config, "" at the top.

    Raises BadInput, which names the field, if one is unknown, missing or out of its allowed values.
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


def to_fields(instance: object) -> dict[str, Any]:
    """Return the fields of ``instance`` under their names in the YAML: the inverse of ``build``."""
    rules = rules_of(type(instance))  # type: ignore[arg-type]  # as above
    return {name: getattr(instance, attribute) for name, (attribute, _) in rules.items()}


@cache
def rules_of(cls: type) -> dict[str, tuple[str, Any]]:
    """Return the attribute and the type of each field, by its name in the YAML, but for RANKED."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = (field.name for field in fields(cls) if field.name not in RANKED)
    return {name.rstrip("_"): (name, hints[name]) for name in names}


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # what reading JSON raises that is no such record


def check(cls: type, values: Mapping[str, object]) -> None:
    """Raise TypeError unless each of ``values``, read from JSON, has the type of that attribute of ``cls``."""
    for name, test in _tests(cls).items():
        if name in values and not test(values[name]):
            raise TypeError(f"{name}: {values[name]!r} has the wrong type")


@cache
def _tests(cls: type) -> dict[str, Callable[[Any], bool]]:
    return {name: _rule(hint)[0] for name, hint in typing.get_type_hints(cls, include_extras=True).items()}


def _checked(value: object, rule: Any, where: str) -> object:
    """Return ``value`` as ``rule`` has it: 1 as 1.0, 1e3 as 1000, 4k as 4096, a list as a tuple. Raises BadInput."""
    if type(value) is int and (rule is float or (get_origin(rule) is Annotated and float in get_args(rule))):
        value = float(value)
    if isinstance(value, list) and get_origin(rule) is tuple and get_origin(get_args(rule)[0]) is Literal:
        return tuple(_checked(item, get_args(rule)[0], where) for item in value)  # the message names one word
    test = _rule(rule)[0]
    if isinstance(value, float) and value.is_integer() and not test(value) and test(int(value)):
        value = int(value)  # 1e3 is a float in YAML
    if isinstance(value, str) and not test(value) and (number := size(value)) is not None and test(number):
        value = number
    if type(value) is int and not -(2**63) <= value < 2**64:  # JSON and torch's generators have no larger ones
        limit = f"at most {2**64 - 1}" if value > 0 else f"at least {-(2**63)}"
        raise BadInput(f"{where}: {value} is not allowed; give {limit}")
    if test(value):
        return tuple(value) if isinstance(value, list) else value
    allowed = f"give {words(rule)}"
    alternatives = get_args(rule) if get_origin(rule) in (Union, types.UnionType) else (rule,)
    if any(get_origin(each) is Literal for each in alternatives):
        allowed = choices(str(value), words(rule).split(" or "))
    elif isinstance(value, float) and not isfinite(value):
        allowed = allowed.replace("a number", "a finite number")
    raise BadInput(f"{where}: {repr(value) if isinstance(value, str) else as_typed(value)} is not allowed; {allowed}")


def size(word: str) -> int | None:
    """Return the number that ``word`` writes with k = 1024, M = 1024^2 or a power, as 4k or 2**12; else None."""
    if not (match := SIZE.fullmatch(word)):
        return None
    count, unit, base, power = match.groups()
    number = int(count) * UNITS[unit] if unit else int(base) ** int(power)
    return number if number < 2**64 else None


def words(rule: Any) -> str:
    """Describe the values that ``rule`` allows, to follow the word "give"."""
    return _rule(rule)[1]


@cache
def _rule(rule: Any) -> tuple[Callable[[Any], bool], str]:
    """Return the test of a value against the type ``rule``, and what it allows, in words.

    They are made once, since a grid has values by the ten thousand.
    """
    origin, args = get_origin(rule), get_args(rule)
    if origin is Annotated:
        (test, allowed), constraint = _rule(args[0]), CONSTRAINTS[args[1]]
        return lambda value: test(value) and constraint(value), f"{allowed}{' of' * args[1].startswith('at')} {args[1]}"
    if origin is Literal:
        allowed = " or ".join(map(str, args))
        return lambda value: any(type(value) is type(word) and value == word for word in args), allowed
    if origin in (Union, types.UnionType):
        tests, allowed = zip(*map(_rule, args), strict=True)
        if not any(map(get_origin, args)):
            return lambda value: type(value) in args, " or ".join(allowed)
        return lambda value: any(test(value) for test in tests), " or ".join(allowed)
    if origin in (tuple, Sequence):
        test, allowed = _rule(args[0])
        return lambda value: isinstance(value, list | tuple) and all(map(test, value)), f"a list, each item {allowed}"
    if origin is Mapping:
        test, allowed = _rule(args[1])
        return lambda value: isinstance(value, Mapping) and all(map(test, value.values())), f"fields, each {allowed}"
    return lambda value: type(value) is rule or rule is Any, WORDS.get(rule, "")
