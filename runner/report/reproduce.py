"""The command that runs one case of a past run again, from its record."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from runner.config import CONF, quote
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import redact_command

PLAIN = re.compile(r"[A-Za-z_][\w./:-]*")  # what Hydra reads as a string without quotes
WORDS = ("true", "false", "null", "nan", "inf")  # what it reads as something else
COPY = re.compile(r"\$\{[\w.]*\.(\w+)\}")  # a default that is the value of another field
OPTIONS = ("device", "seed", "debug", "time_wrong", "quick", "deterministic_algorithms")


def command(case: CaseRecord) -> str:
    """Return ``python -m runner workload=...``, with what differs from the defaults here. Secrets are hidden.

    A replica is a repetition of a case, so its number is left out.
    """
    settings = _defaults("config")
    words = [*_option("workload", case.workload), *_option("impl", case.impl)]
    measures = [choice.name for choice in case.measures]
    if {"measure": measures} not in settings.get("defaults", []):
        words.append(f"measure=[{','.join(measures)}]")
    for choice in case.measures:
        words += _fields(f"measure.{choice.name}", f"measure/{choice.name}", choice, quick=case.quick)
    words += [f"{name}={_value(own)}" for name in OPTIONS if (own := getattr(case, name)) != settings.get(name)]
    return redact_command(["python -m runner", *map(shlex.quote, words)])


def _option(group: str, choice: Choice) -> list[str]:
    return [f"{group}={choice.name}", *_fields(group, f"{group}/{choice.name}", choice)]


def _fields(prefix: str, file: str, choice: Choice, *, quick: bool = False) -> list[str]:
    """Return an override for each field of ``choice`` that differs from its YAML ``file``."""
    defaults = _defaults(file)
    if quick:
        defaults = defaults | defaults.get("quick", {})
    given = {name: choice.commit if name == "rev" and choice.commit else own for name, own in choice.fields.items()}
    given = {name: list(own) if isinstance(own, tuple) else own for name, own in given.items()}
    return [f"{prefix}.{name}={_value(own)}" for name, own in given.items() if not _is_default(name, given, defaults)]


def _is_default(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Return whether the field ``name`` has its default, which may be the value of another field."""
    default = defaults.get(name, ...)
    if isinstance(default, str) and (other := COPY.fullmatch(default)):
        default = given.get(other[1], ...)
    return type(default) is type(given[name]) and bool(default == given[name])


@cache
def _defaults(file: str) -> Mapping[str, Any]:
    """Return the fields of a YAML of ``conf/``; none if it is not there, as for an option of another machine."""
    try:
        found = yaml.safe_load((CONF / f"{file}.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _value(value: object) -> str:
    """Return ``value`` in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else quote(value)
