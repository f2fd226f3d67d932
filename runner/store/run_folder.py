"""A run's folder ``outputs/<date>/<time>-<name>/``: make it, find it, and write what stands in it beside the journal.

A resumed run goes on in its folder. A kill may come at any moment, so files are replaced as a whole, never rewritten.
"""

import contextlib
import os
import platform
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from ..device.files import no_link, replace_file
from ..device.identity import package_version
from ..device.processes import ROOT
from ..device.used_paths import repository
from ..records import untrusted
from ..records.bad_input import BadInput
from ..records.case import BENCH, CaseRecord, Choice
from ..records.plan import Plan
from ..records.redaction import redact_command
from ..records.schema import UNREADABLE, check
from . import journal
from .provenance import Repositories

PLAN = "plan.jsonl"
CONFIGS = "configs.yaml"
EXAMPLE = "outputs/<date>/<time>-<name>"  # path of a run's folder
TIME = "hh-mm-ss-"  # before the name of a run in that of its folder
ENVIRONMENT = "environment.json"
PUBLISHED = ".logged"  # names of the reporters that have published all rows of the run, one per line

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "numpy", "pandas", "wandb")


def claim(output_dir: str, name: str) -> Path:
    """Make a new folder, named by date, time and ``name``, and a number if that folder exists. Raises OSError."""
    base = Path(output_dir) / time.strftime("%Y-%m-%d") / f"{time.strftime('%H-%M-%S')}-{name}"
    base.parent.mkdir(parents=True, exist_ok=True)
    folder = base
    for number in count(2):
        try:
            folder.mkdir()
            break
        except FileExistsError:
            folder = base.with_name(f"{base.name}-{number}")
    return folder


def withdraw(folder: Path) -> None:
    """Remove the folder of a run that was refused before its first case, and the folder of its date if it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def run_folders(output_dir: str) -> list[Path]:
    """Return the folders of all runs under ``output_dir``, the oldest first.

    If its dates hold none, it is a date or a run itself, or a folder above those with dates.
    """
    found = ([*Path(output_dir).glob(f"{above}{journal.NAME}")] for above in ("*/*/", "*/", "", "*/*/*/"))
    return sorted((path.parent for path in next(filter(None, found), [])), key=begun)


def locate(of: str | Path, output_dir: str, name: str | None = None) -> Path:
    """Return the folder ``of`` a run. ``last`` is the newest under ``output_dir``, of those called ``name`` if given.

    Raises BadInput, which names a folder to give instead, if it is not the folder of a run.
    """
    if str(of) == "last":
        for folder in reversed(run_folders(output_dir)):
            with contextlib.suppress(OSError, ValueError):  # its plan cannot be read
                if (folder / PLAN).is_file() and (name is None or read_plan(folder, with_cases=False).name == name):
                    return folder
        called = f" called {name}" if name else ""
        raise BadInput(f"last: there is no run{called} under {output_dir}; give the folder of one, as {EXAMPLE}")
    folder = Path(of)
    if (folder / journal.NAME).is_file():
        return folder
    what = f"it holds no {journal.NAME}, so it is not the folder of a run"
    what = what if folder.is_dir() else "it is a file" if folder.exists() else "there is no such folder"
    others = run_folders(str(folder)) or run_folders(str(folder.parent)) or run_folders(output_dir)
    nearest = [run for run in others if str(run).startswith(str(folder)) or run.name == folder.name]
    alike = nearest or [run for run in others if run.name[len(TIME) :] == folder.name[len(TIME) :]] or others
    advice = f"give {alike[-1]}, or another of python -m runner list" if alike else f"give {EXAMPLE}"
    raise BadInput(f"{folder}: {what}; {advice}")


def find(of: str, output_dir: str, name: str | None) -> Path:
    """Return the folder that ``resume=<of>`` names.

    Raises BadInput as ``locate`` does, and if the folder has a link out of it or a pipe, which a session would write
    to, or if the run has another format or was saved by a program.
    """
    try:
        folder = locate(of, output_dir, name)
    except BadInput as error:
        raise BadInput(f"resume={error}, or leave resume out to start one") from None
    for path in _odd_entries(folder) if of != "last" else ():
        if not path.is_symlink():
            raise BadInput(f"resume={of}: {path} is not a regular file; remove it")
        if not _is_within(folder, path):
            raise BadInput(f"resume={of}: {path} is a link out of the folder; put a copy in its place, or remove it")
    _check_kind(folder)
    return folder


def _check_kind(folder: Path) -> None:
    """Raise BadInput if the run in ``folder`` has another format, or was saved by a program."""
    journal.read_records(folder, lambda _: None, lambda line: line.startswith(b'{"record":"session"'))
    with contextlib.suppress(OSError, ValueError):  # a damaged plan has its own message
        if read_plan(folder, with_cases=False).launcher.name == BENCH:
            raise BadInput(f"resume={folder}: a program has saved it (runner.bench), so run the program again")


def _odd_entries(folder: Path) -> Iterator[Path]:
    """Yield all entries that are neither files nor folders, such as links and pipes, at any depth of ``folder``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _odd_entries(Path(entry))
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry)


def artifact(folder: Path, name: str) -> Path | None:
    """Return the file that a row calls ``name``; None if it is not here, as one of another machine, or not within."""
    path = folder / name
    return path if "\0" not in name and _is_within(folder, path) and os.path.isfile(path) else None


def _is_within(folder: Path, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def begun(folder: Path) -> tuple[float, float]:
    """Return the start of the run in ``folder``, in seconds since 1970, and the time of its plan, for equal starts.

    Folders have local times, which two machines or a journey may have from several zones: the recorded start has its
    offset. One without an offset does not say when it was, so that the time of the plan stands in for it.
    """
    start = written = 0.0
    with contextlib.suppress(OSError):
        start = written = (folder / PLAN).stat().st_mtime
    sessions = earlier_sessions(folder)
    named = f"{folder.parent.name} {folder.name[:8]}", "%Y-%m-%d %H-%M-%S"
    with contextlib.suppress(ValueError, OverflowError, OSError):
        text, form = (str(sessions[0].get("started")), journal.STARTED) if sessions else named
        start = datetime.strptime(text, form).timestamp()
    return start, written


def check_owner(folder: Path) -> None:
    """Raise BadInput if another user owns ``folder`` or everybody can write to it. Root may resume any folder.

    Resuming runs what the folder's cases name, a user's file included, so the folder must be this user's alone.
    """
    facts, user = folder.stat(), os.geteuid()
    if user and (facts.st_uid != user or facts.st_mode & stat.S_IWOTH):
        problem = "another user owns it" if facts.st_uid != user else "everybody can write to it"
        raise BadInput(f"resume={folder}: {problem}; if you trust what it names as code, add resume.trust=true")


def check_code(folder: Path, cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput if one of ``cases``, which the plan in ``folder`` names, would run a file in ``folder``."""
    programs = {str(measure.fields.get("path") or "") for case in cases for measure in case.measures} - {""}
    for path in sorted(programs.union(*(case.user_files for case in cases))):
        named = Path(*path.split("."))  # by package.module
        if any(_is_within(folder, place) for place in (Path(path), named, repository(os.getcwd()) / named)):
            trusted = "type the implementations and the workload to run it, or add resume.trust=true"
            raise BadInput(f"resume={folder}: its plan runs {path}, which came with the folder; {trusted}")


def published(folder: Path) -> list[str]:
    """Return the names of the reporters that have published all rows of the run; none if that cannot be read."""
    try:
        with open(folder / PUBLISHED, opener=no_link, encoding="utf-8") as file:
            return file.read(2**16).split()
    except (OSError, ValueError):
        return []


def set_published(folder: Path, names: Sequence[str]) -> None:
    """Record the ``names`` of the reporters that have published all rows of the run, if that is possible."""
    with contextlib.suppress(OSError):
        replace_file(folder / PUBLISHED, "\n".join(names).encode())


def write_plan(folder: Path, plan: Plan, cases: Sequence[CaseRecord]) -> None:
    """Write ``cases`` and the settings of ``plan`` to ``plan.jsonl``, for people to ``configs.yaml``. Raises OSError.

    In ``plan.jsonl`` the cases refer to a table of implementations and measurements by their places in it.
    """
    choices = {choice.text: choice for case in cases for choice in (case.impl, *case.measures)}
    places = {text: place for place, text in enumerate(choices)}
    lines = [orjson.dumps({**plan_settings(plan), "choices": [choice.to_record() for choice in choices.values()]})]
    for case in cases:
        measures = [places[measure.text] for measure in case.measures]
        lines.append(orjson.dumps({**case.to_record(), "impl": places[case.impl.text], "measures": measures}))
    replace_file(folder / PLAN, b"\n".join(lines) + b"\n")
    replace_file(folder / CONFIGS, "---\n".join(_documents(plan, cases)).encode())


SETTINGS = ("name", "baseline", "launcher", "log", "columns", "question", "conclusion")  # in plan.jsonl, of a Plan


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of ``plan`` as JSON-ready values."""

    def record(value: Any) -> Any:
        if isinstance(value, tuple):
            return [record(item) for item in value]
        return value.to_record() if isinstance(value, Choice) else value

    return {name: record(getattr(plan, name)) for name in SETTINGS}


def read_plan(folder: Path, *, with_cases: bool = True) -> Plan:
    """Return the plan in ``plan.jsonl``, without its cases if these are not needed. Raises OSError, ValueError."""
    with open(folder / PLAN, "rb", opener=no_link) as file:
        try:
            records = map(untrusted.parse, untrusted.lines(file))
            head: Any = next(records, None)
            plain = {name: head[name] for name in ("name", "baseline", "columns", "question")}
            check(Plan, plain)
            log, conclusion = (tuple(map(Choice.from_record, head[name])) for name in ("log", "conclusion"))
            choices = [Choice.from_record(record) for record in head["choices"]]
            return Plan(
                **plain | {"columns": tuple(plain["columns"])},
                launcher=Choice.from_record(head["launcher"]),
                log=log,
                conclusion=conclusion,
                cases=tuple(CaseRecord.from_record(record, choices) for record in records if with_cases),
                output_dir=str(folder.parent.parent),
            )
        except UNREADABLE as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


def _documents(plan: Plan, cases: Sequence[CaseRecord]) -> Iterator[str]:
    """Yield the YAML document of the run, then one for each case with its resolved config."""
    import yaml

    def dump(value: object) -> str:
        return str(yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))

    yield dump(plan_settings(plan))
    dumped: dict[str, str] = {}  # dumping what many cases share would take most of the time
    for case in cases:
        record = case.to_record()
        begin = dump({"key": case.key, "workload": record.pop("workload")})
        if (shared := repr(record)) not in dumped:
            dumped[shared] = dump(record)
        yield begin + dumped[shared]


def environment(command: Sequence[str], repositories: Repositories | None = None) -> dict[str, Any]:
    """Return the facts that are known without torch: machine, versions, commit, ``command``. Secrets are redacted."""
    commit, dirty = (repositories or Repositories()).state(ROOT) or (None, None)  # as for an installed package
    return {
        "command": redact_command(command),
        "started": time.strftime(journal.STARTED),
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: package_version(name) or None for name in PACKAGES},
        "commit": commit,
        "dirty": dirty,
    }


def write_environment(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``facts`` of the current session to ``environment.json``. Raises OSError."""
    replace_file(folder / ENVIRONMENT, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


def earlier_sessions(folder: Path) -> list[dict[str, Any]]:
    """Return the facts in ``environment.json`` of each session so far, in order; [] if it cannot be read."""
    try:
        with open(folder / ENVIRONMENT, "rb", opener=no_link) as file:
            last = untrusted.parse(file.read(untrusted.LONGEST))
        return [facts for facts in (*last.pop("earlier_sessions", []), last) if isinstance(facts, dict)]
    except (OSError, *UNREADABLE):
        return []
