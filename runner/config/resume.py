"""``resume=``: take the cases and settings of an earlier run if the command line chooses no cases itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.config import grid, quote
from runner.config.compose import Composer, key_of
from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.schema import BadInput
from runner.store import run_folder


@dataclass(frozen=True)
class Earlier:
    """An earlier run, whose whole grid is resumed."""

    folder: Path
    head: run_folder.Head
    cases: tuple[CaseRecord, ...]

    def overrides(self, compose: Composer, given: Sequence[str]) -> list[str]:
        """The run's settings as overrides, without those that the overrides ``given`` replace."""
        keys = [key_of(compose.parse(line)) for line in given]
        launcher, *reporters = map(Choice.from_record, (self.head["launcher"], *self.head["log"]))
        found = []
        if "launcher" not in keys:
            found += [f"launcher={launcher.name}", *_fields("launcher", launcher)]
        if "log" not in keys:
            found.append(f"log=[{','.join(one.name for one in reporters)}]")
            found += [line for one in reporters for line in _fields(f"log.{one.name}", one)]
        single = [f"{key}={_value(value)}" for key, value in self.head.items() if key not in (*keys, "launcher", "log")]
        return found + single

    def plan(self, configs: Sequence[Mapping[str, Any]]) -> Plan:
        """The run's cases, with the settings of ``configs``, to be run in its folder. Raises BadInput."""
        plan = grid.plan(configs, self.cases)
        return replace(plan, resume=replace(plan.resume, of=str(self.folder), whole=True))


def find(compose: Composer, overrides: Sequence[str]) -> Earlier | None:
    """Return the run to resume; None if ``resume.of``, which is one of ``overrides``, is null, or they choose cases.

    Raises BadInput.
    """
    given = {key_of(compose.parse(line)): line for line in overrides}
    if not all(map(grid.is_run_field, given)):
        return None
    config = compose([given[key] for key in ("resume.of", "output_dir", "name") if key in given])
    if config.resume.of is None:
        return None
    folder = run_folder.find(str(config.resume.of), str(config.output_dir), config.name)
    try:
        return Earlier(folder, run_folder.read_head(folder), tuple(run_folder.read_cases(folder)))
    except FileNotFoundError:
        problem = f"it has no {run_folder.PLAN}"
    except (OSError, ValueError) as error:
        problem = f"its {run_folder.PLAN} cannot be read ({error})"
    again = f"repeat the command that began it, with resume={config.resume.of} added"
    raise BadInput(f"resume={config.resume.of}: {problem}; {again}")


def _fields(prefix: str, choice: Choice) -> list[str]:
    """Return an override for each field of ``choice``."""
    return [f"{prefix}.{field}={_value(value)}" for field, value in choice.fields.items()]


def _value(value: object) -> str:
    """Return ``value`` in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    return quote(value) if isinstance(value, str) else json.dumps(value)
