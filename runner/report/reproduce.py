"""The command that runs one case of a past run again, from its record."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config import own_workloads
from ..config.words import in_hydra
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Choice
from ..records.options import option_defaults
from ..records.redaction import redact_command
from ..tasks import own_file

OF_PROGRAM = "bench(...) in a program: its command is below, in the environment"
COPY = re.compile(r"\$\{[\w.]*\.(\w+)\}")  # a default that is the value of another field


def command(case: CaseRecord) -> str:
    """Return ``python -m runner workload=...``, with what differs from the defaults here. Secrets are hidden.

    A replica is a repetition of a case, so its number is left out. What ``runner.bench`` has measured has no command.
    """
    return OF_PROGRAM if case.of_program else redact_command(_words(case))


def _words(case: CaseRecord) -> list[str]:
    settings = option_defaults("config")
    if own_file.is_own(case.workload.name):
        words = _own_workload(case.workload, case.impl)
    else:
        words = [*_option("workload", case.workload), *_option("impl", case.impl)]
    measures = [choice.name for choice in case.measures]
    if {"measure": measures} not in settings.get("defaults", []):
        words.append(f"measure=[{','.join(measures)}]")
    for choice in case.measures:
        words += _fields(f"measure.{choice.name}", f"measure/{choice.name}", choice, quick=case.settings.quick)
    words += [f"{name}={in_hydra(value)}" for name, value in vars(case.settings).items() if value != settings.get(name)]
    return ["python", "-m", "runner", *words]


def _option(group: str, choice: Choice) -> list[str]:
    return [f"{group}={choice.name}", *_fields(group, f"{group}/{choice.name}", choice)]


def _own_workload(workload: Choice, impl: Choice) -> list[str]:
    """Return the overrides for a workload in a user's file, whose defaults are those of the file as it is now."""
    path = str(workload.fields["path"])
    try:
        file = own_workloads.defaults(own_file.read(path))
    except BadInput:  # it was moved or changed: then each field is named
        file = {}
    fields = {name: value for name, value in _given(workload).items() if name != "path"}
    words = [f"workload={in_hydra(path)}", *_changed("workload", fields, file)]
    function = str(impl.fields.get("path") or "")
    if function == f"{path}:{impl.name}":
        given = {name: value for name, value in _given(impl).items() if name != "path" and value}
        return [*words, f"impl={impl.name}", *_changed("impl", given, {})]
    wrapped = str(impl.fields.get("of") or "").removeprefix(f"{path}:")
    short = replace(impl, fields={**impl.fields, "of": wrapped}) if wrapped else impl
    return [*words, f"impl={impl.name}", *_fields("impl", f"impl/{impl.name}", short, wraps="reference")]


def _fields(prefix: str, file: str, choice: Choice, *, quick: bool = False, wraps: str = "") -> list[str]:
    """Return an override for each field of ``choice`` that differs from its YAML ``file``."""
    usual = dict(option_defaults(file))
    usual |= usual.get("quick", {}) if quick else {}
    return _changed(prefix, _given(choice), usual | ({"of": wraps} if wraps else {}))


def _given(choice: Choice) -> dict[str, Any]:
    """Return the fields of ``choice`` as they stand in a YAML, with the commit of its revision."""
    fields = {**choice.fields, **({"rev": choice.commit} if choice.commit else {})}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _changed(prefix: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    changed = {name: value for name, value in given.items() if not _is_default(name, given, defaults)}
    return [f"{prefix}.{name}={in_hydra(value)}" for name, value in changed.items()]


def _is_default(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Return whether the field ``name`` has its default, which may be the value of another field."""
    default = defaults.get(name, ...)
    if isinstance(default, str) and (other := COPY.fullmatch(default)):
        default = given.get(other[1], ...)
    return type(default) is type(given[name]) and bool(default == given[name])
