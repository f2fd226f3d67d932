"""``resume=...`` on the command line, and the plan of an earlier run where nothing else on it chooses cases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runner.config import BASELINE, WORD, of_the_run, quoted
from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.schema import BadInput
from runner.store import resume, run_folder


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
        launcher, *reporters = map(Choice.from_record, (self.head["launcher"], *self.head["log"]))
        if "launcher" not in keys:
            found += [f"launcher={launcher.name}", *_fields("launcher", launcher)]
        if "log" not in keys:
            found.append(f"log=[{','.join(one.name for one in reporters)}]")
            found += [word for one in reporters for word in _fields(f"log.{one.name}", one)]
        settings = {name: self.head[name] for name in ("name", BASELINE)} | {"columns": self.head["columns"]}
        return found + [f"{name}={_value(value)}" for name, value in settings.items() if name not in keys]

    def settled(self, plan: Plan) -> Plan:
        """``plan``, composed from ``words``, for this very folder."""
        return replace(plan, resume=replace(plan.resume, of=str(self.folder), whole=True))


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


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _beside(key: str) -> bool:
    return of_the_run(key) or key.split(".")[0] in (BASELINE, "hydra")


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
    return quoted(value) if isinstance(value, str) else json.dumps(value)
