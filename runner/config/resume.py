"""``resume=...`` on the command line, and the plan of an earlier run where nothing else on it chooses cases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runner.config import grid
from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.schema import BadInput
from runner.store import resume, run_folder

WORD = "resume"
BASELINE = "baseline"
LISTS = (f"{WORD}.retry", f"{WORD}.ignore", "columns")
AXES = ("axes", "workload.axes")
# Fields, and groups of them, that say what to do with cases and choose none: of the run.
OF_THE_RUN = ("launcher", "log", WORD, "output_dir", "name", "columns")


def normalize(word: str) -> str:
    """Return ``word`` as Hydra takes it.

    ``resume=X`` becomes ``resume.of='X'``, fields and groups that hold lists take ``a,b``, and ``log=none`` is the
    empty list. Hydra would take ``baseline=compiled(of=torch)``, as the table prints it, for a call of a function,
    would look for given axes among the existing ones, and would merge ``{}``, which changes nothing. A word without
    ``=`` stays as it is, for Hydra to refuse.
    """
    key, equals, value = word.partition("=")
    if not equals:
        return word
    plain = value and value != "null" and value[0] not in "'\""
    if key in (WORD, f"{WORD}.of") and plain:
        return f"{WORD}.of={_quoted(value)}"
    if key == BASELINE and plain and "(" in value:
        return f"{key}={_quoted(value)}"
    if key == "log" and value in ("none", "null", ""):
        return "log=[]"
    if (key in LISTS or (key == "log" and "," in value)) and not value.startswith("["):
        return f"{key}=[{value}]"
    if key in AXES and value == "{}":
        return f"{key}=null"
    if key == "axes" and value.startswith("{"):
        return f"+{word}"
    return f"{WORD}.of={value or 'null'}" if key == WORD else word


@dataclass(frozen=True)
class Earlier:
    """An earlier run, whose grid the command line asks for."""

    folder: Path
    head: dict[str, Any]
    cases: tuple[CaseRecord, ...]

    def words(self, given: Sequence[str]) -> list[str]:
        """The run's settings as overrides, but for those that ``given`` ones replace."""
        keys = [_key(word) for word in given]
        found = []
        launcher, reporters = Choice.from_record(self.head["launcher"]), self._reporters()
        if "launcher" not in keys:
            found += [f"launcher={launcher.name}", *_fields("launcher", launcher)]
        if "log" not in keys:
            found.append(f"log=[{','.join(one.name for one in reporters)}]")
            found += [word for one in reporters for word in _fields(f"log.{one.name}", one)]
        settings = {name: self.head[name] for name in ("name", BASELINE)} | {"columns": self.head["columns"]}
        return found + [f"{name}={_value(value)}" for name, value in settings.items() if name not in keys]

    def _reporters(self) -> tuple[Choice, ...]:
        return tuple(map(Choice.from_record, self.head["log"]))

    def settled(self, plan: Plan) -> Plan:
        """``plan``, composed from ``words``, for this very folder."""
        return replace(plan, resume=replace(plan.resume, of=str(self.folder), whole=True))

    def plan(self, config: Mapping[str, Any], output_dir: str, fields: Mapping[str, Any]) -> Plan:
        """What Hydra would compose from ``words``. Raises BadInput."""
        settings = replace(grid.resume({**config["resume"], **fields}), of=str(self.folder), whole=True)
        return Plan(
            cases=self.cases,
            name=self.head["name"],
            baseline=self.head["baseline"],
            output_dir=output_dir,
            launcher=Choice.from_record(self.head["launcher"]),
            log=self._reporters(),
            columns=tuple(self.head["columns"]),
            resume=settings,
        )


def find(words: Sequence[str], config: Mapping[str, Any]) -> Earlier | None:
    """The earlier run that ``words`` resume, unless some of them choose cases. Raises BadInput."""
    given = {_key(word): word.partition("=")[2] for word in words}
    of = _read(given.get(f"{WORD}.of", "null"))
    if of is None or any(not _beside(key) for key in given):
        return None
    output_dir, name = (_read(given[key]) if key in given else config[key] for key in ("output_dir", "name"))
    folder = resume.find(str(of), str(output_dir), name)
    try:
        return Earlier(folder, run_folder.read_head(folder), tuple(run_folder.read_cases(folder)))
    except FileNotFoundError:
        problem = f"it has no {run_folder.PLAN}"
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"its {run_folder.PLAN} cannot be read ({error})"
    raise BadInput(f"resume={of}: {problem}; give the command that began it once more, with resume={of} beside it")


def at_once(earlier: Earlier, words: Sequence[str], config: Mapping[str, Any]) -> Plan | None:
    """The plan, if it can be told without Hydra, which takes 0.3 s: ``words`` are of ``resume`` and ``output_dir``."""
    fields: dict[str, Any] = {}
    output_dir = str(config["output_dir"])
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            return None  # a flag, or a mistake: Hydra tells
        if key == "output_dir" and _is_plain(value):
            output_dir = str(_read(value))
        elif key.startswith(f"{WORD}."):
            fields[key.removeprefix(f"{WORD}.")] = _read(value)
        else:
            return None
    return earlier.plan(config, output_dir, fields)


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def of_the_run(key: str) -> bool:
    """Whether ``key`` is one of ``OF_THE_RUN``, or within one."""
    return any(f"{key}.".startswith(f"{name}.") for name in OF_THE_RUN)


def _beside(key: str) -> bool:
    return of_the_run(key) or key.split(".")[0] in (BASELINE, "hydra")


def _is_plain(value: str) -> bool:
    return not set(value) & set("${}[](),")


def _read(value: str) -> Any:
    """A value of Hydra's grammar that is also one of YAML's."""
    try:
        if value.startswith("'") and value.endswith("'"):
            return value[1:-1].replace(r"\'", "'")
        return yaml.safe_load(value) if value else ""
    except yaml.YAMLError:
        return value


def _fields(where: str, choice: Choice) -> list[str]:
    """Return an override for each field of ``choice``."""
    return [f"{where}.{field}={_value(value)}" for field, value in choice.fields.items()]


def _value(value: object) -> str:
    """``value`` in Hydra's grammar."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(value: str) -> str:
    quoted = value.replace("'", r"\'")
    return f"'{quoted}'"
