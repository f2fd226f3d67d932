"""``resume=``: take the cases and settings of an earlier run if the command line chooses no cases itself."""

from collections.abc import Sequence
from dataclasses import replace

from ..records.bad_input import BadInput
from ..records.case import Choice
from ..records.plan import Plan, Resume
from ..store import run_folder
from . import grid
from .compose import Composer, key_of
from .words import in_hydra


def find_earlier(compose: Composer, overrides: Sequence[str]) -> Plan | None:
    """Return the plan of the run to resume, whose whole grid goes on in its folder.

    None if ``resume.of`` is null, or if ``overrides`` choose cases. Raises BadInput, also if these lack a workload.
    """
    by_key = {key_of(compose.parse(line)): line for line in overrides}
    config = compose([by_key[key] for key in ("resume.of", "output_dir", "name") if key in by_key])
    if (of := config.resume.of) is None:
        return None
    if chosen := [line for key, line in by_key.items() if not grid.is_run_field(key)]:
        if by_key.keys() & {"workload", "experiment"}:
            return None
        raise BadInput(f"resume={of}: {chosen[0]} chooses cases; add the rest of the command, with its workload=")
    folder = run_folder.find(str(of), str(config.output_dir), config.name)
    try:
        return replace(run_folder.read_plan(folder), resume=Resume(of=str(folder)), whole=True)
    except FileNotFoundError:
        problem = f"it has no {run_folder.PLAN}"
    except (OSError, ValueError) as error:
        problem = f"its {run_folder.PLAN} cannot be read ({error})"
    raise BadInput(f"resume={of}: {problem}; repeat the command that began it, with resume={of} added")


def settings(earlier: Plan, compose: Composer, given: Sequence[str]) -> list[str]:
    """Return the settings of an ``earlier`` run as overrides, without settings that ``given`` replaces."""
    keys = [key_of(compose.parse(line)) for line in given]
    names = ",".join(reporter.name for reporter in earlier.log)
    lines = {
        "launcher": [f"launcher={earlier.launcher.name}", *_fields("launcher", earlier.launcher)],
        "log": [f"log=[{names}]", *(line for each in earlier.log for line in _fields(f"log.{each.name}", each))],
    }
    values = run_folder.plan_settings(earlier).items()
    return [line for key, value in values if key not in keys for line in lines.get(key, [f"{key}={in_hydra(value)}"])]


def _fields(prefix: str, choice: Choice) -> list[str]:
    return [f"{prefix}.{field}={in_hydra(value)}" for field, value in choice.fields.items()]
