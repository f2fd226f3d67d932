"""A run's folder ``outputs/<date>/<time>-<name>/``: make it, find it, and write what stands in it beside the journal.

A resumed run goes on in its folder. A kill may come at any moment, so files are replaced as a whole, never rewritten.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import orjson

from runner.device.processes import ROOT, output
from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.results import redact_command
from runner.experiment.schema import UNREADABLE, BadInput, check
from runner.store import journal
from runner.store.fingerprint import version

PLAN = "plan.jsonl"
CONFIGS = "configs.yaml"
ENVIRONMENT = "environment.json"

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "numpy", "pandas", "wandb")


def claim(output_dir: str, name: str) -> Path:
    """Make a new folder, named by date, time and ``name``, and a number if that folder exists. Raises OSError."""
    base = Path(output_dir) / time.strftime("%Y-%m-%d") / f"{time.strftime('%H-%M-%S')}-{name}"
    base.parent.mkdir(parents=True, exist_ok=True)
    folder, number = base, 1
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            folder = base.with_name(f"{base.name}-{number}")
        else:
            return folder


def withdraw(folder: Path) -> None:
    """Remove the folder of a run that was refused before its first case, and that of its date if it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def find(of: str, output_dir: str, name: str | None) -> Path:
    """Return the folder that ``resume=<of>`` names; for ``last`` see ``newest``.

    Raises BadInput if there is no such folder, no journal in it, or a link out of it, which a session would write to.
    """
    if of == "last":
        if found := newest(output_dir, name):
            return found
        called = f" called {name}" if name else ""
        remedy = "give the whole command of the one that you mean, or leave" if name else "leave"
        raise BadInput(f"resume=last: there is no run{called} under {output_dir}; {remedy} resume out to start one")
    folder = Path(of)
    if not folder.is_dir():
        raise BadInput(f"resume={of}: there is no such folder; give last, or one that holds a {journal.NAME}")
    if not (folder / journal.NAME).is_file():
        raise BadInput(f"resume={of}: it holds no {journal.NAME}, so it is not the folder of a run")
    for link in _links(folder):
        if not _is_within(folder, link):
            raise BadInput(f"resume={of}: {link} is a link out of the folder; put a copy in its place, or remove it")
    return folder


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in ``folder`` and the folders in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry)
            elif entry.is_dir():
                yield from _links(Path(entry))


def artifact(folder: Path, name: str) -> Path | None:
    """Return the file that a row calls ``name``; None if it is not here, as one of another machine, or not within."""
    path = folder / name
    return path if "\0" not in name and _is_within(folder, path) and path.is_file() else None


def _is_within(folder: Path, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def newest(output_dir: str, name: str | None = None) -> Path | None:
    """Return the folder of the newest run under ``output_dir``, of those called ``name`` if that is given."""

    def begun(folder: Path) -> tuple[str, str, float]:
        return folder.parent.name, folder.name[:8], (folder / PLAN).stat().st_mtime  # date, time, order in one second

    folders = [path.parent for path in Path(output_dir).glob(f"*/*/{PLAN}") if (path.parent / journal.NAME).is_file()]
    for folder in sorted(folders, key=begun, reverse=True):
        with contextlib.suppress(OSError, ValueError):
            if name is None or read_head(folder)["name"] == name:
                return folder
    return None


def check_owner(folder: Path) -> None:
    """Raise BadInput if another user owns ``folder`` or everybody can write to it. Root may resume any folder.

    Resuming runs what the folder's cases name, a user's file included, so the folder must be this user's alone.
    """
    facts, user = folder.stat(), os.geteuid()
    if user and facts.st_uid != user:
        problem = "another user owns it"
    elif user and facts.st_mode & stat.S_IWOTH:
        problem = "everybody can write to it"
    else:
        return
    raise BadInput(f"resume={folder}: {problem}; if you trust what it names as code, add resume.trust=true")


def write_plan(folder: Path, plan: Plan, cases: Sequence[CaseRecord]) -> None:
    """Write ``cases`` and the settings of ``plan`` to ``plan.jsonl``, and for people to ``configs.yaml``.

    In ``plan.jsonl`` the cases refer to a table of implementations and measurements by their places in it.
    Raises OSError.
    """
    choices = {choice.text: choice for case in cases for choice in (case.impl, *case.measures)}
    places = {text: place for place, text in enumerate(choices)}
    lines = [orjson.dumps({**_settings(plan), "choices": [choice.to_record() for choice in choices.values()]})]
    for case in cases:
        measures = [places[measure.text] for measure in case.measures]
        lines.append(orjson.dumps({**case.to_record(), "impl": places[case.impl.text], "measures": measures}))
    replace(folder / PLAN, b"\n".join(lines) + b"\n")
    replace(folder / CONFIGS, "---\n".join(_documents(plan, cases)).encode())


class Head(TypedDict):
    """The settings in ``plan.jsonl``."""

    name: str
    baseline: str | None
    launcher: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    question: str | None
    conclusion: Sequence[Mapping[str, Any]]


LATER: Mapping[str, Any] = {"question": None, "conclusion": []}  # settings that the folders of older versions lack


def read_head(folder: Path) -> Head:
    """Return the settings in ``plan.jsonl``. Raises OSError, ValueError."""
    with open(folder / PLAN, "rb", opener=journal.no_link) as file, _readable():
        record = {**LATER, **orjson.loads(file.readline())}
        head: Any = {name: record[name] for name in Head.__annotations__}
        check(Head, head)
        for choice in (head["launcher"], *head["log"], *head["conclusion"]):
            Choice.from_record(choice)
    return cast(Head, head)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise ValueError for whatever reading a record raises that is none."""
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def has_settings(folder: Path, plan: Plan) -> bool:
    """Return whether ``plan.jsonl`` has the settings of ``plan``. Raises OSError, ValueError."""
    return bool(dict(read_head(folder)) == orjson.loads(orjson.dumps(_settings(plan))))


def read_cases(folder: Path) -> list[CaseRecord]:
    """Return the cases in ``plan.jsonl``. Raises OSError, ValueError."""
    cases = []
    with open(folder / PLAN, "rb", opener=journal.no_link) as file, _readable():
        choices = [Choice.from_record(record) for record in orjson.loads(file.readline())["choices"]]
        for line in file:
            record = orjson.loads(line)
            record["workload"], record["impl"] = Choice.from_record(record["workload"]), choices[record["impl"]]
            record["measures"] = tuple(choices[place] for place in record["measures"])
            check(CaseRecord, record)
            cases.append(CaseRecord(**record))
    return cases


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "baseline": plan.baseline,
        "launcher": plan.launcher.to_record(),
        "log": [reporter.to_record() for reporter in plan.log],
        "columns": list(plan.columns),
        "question": plan.question,
        "conclusion": [analysis.to_record() for analysis in plan.conclusion],
    }


def _documents(plan: Plan, cases: Sequence[CaseRecord]) -> Iterator[str]:
    """Yield the YAML document of the run, then one for each case with its resolved config."""
    import yaml

    def dump(value: object) -> str:
        text: str = yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
        return text

    yield dump(_settings(plan))
    dumped: dict[str, str] = {}  # dumping what many cases share would take most of the time
    for case in cases:
        record = case.to_record()
        own = dump({"key": case.key, "workload": record.pop("workload")})
        if (shared := repr(record)) not in dumped:
            dumped[shared] = dump(record)
        yield own + dumped[shared]


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """Return what is known without torch: machine, versions, commit, command line. Secrets are redacted."""
    git = ["git", "-C", str(ROOT)]  # no repository: None, as for an installed package
    commit = output([*git, "rev-parse", "HEAD"])
    return {
        "command": redact_command(["python -m runner", *argv]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit and commit.strip(),
        "dirty": None if commit is None else bool(output([*git, "status", "--porcelain"])),
    }


def write_environment(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``facts`` of the current session to ``environment.json``. Raises OSError."""
    replace(folder / ENVIRONMENT, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


def earlier_sessions(folder: Path) -> list[dict[str, Any]]:
    """Return the facts in ``environment.json`` of each session so far, in order; [] if it cannot be read."""
    try:
        with open(folder / ENVIRONMENT, "rb", opener=journal.no_link) as file:
            last = orjson.loads(file.read())
        return [facts for facts in (*last.pop("earlier_sessions", []), last) if isinstance(facts, dict)]
    except (OSError, *UNREADABLE):
        return []


def replace(path: Path, content: bytes) -> None:
    """Replace ``path``: a reader finds the old content or the new one. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # a part of the content, on a full disk
        raise
