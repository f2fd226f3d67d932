"""``outputs/<date>/<time>-<name>/``: a folder that no two runs share, and what stands in it before the first row.

A run that is resumed goes on in its folder. Its files are replaced at once, never rewritten, for a kill may come at any
moment.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner.device.processes import ROOT
from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.results import redact_command

PLAN = "plan.jsonl"
CONFIGS = "configs.yaml"
ENVIRONMENT = "environment.json"

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "numpy", "pandas", "wandb")


def claim(output_dir: str, name: str) -> Path:
    """A new folder, named by date, time and ``name``; a number is added if another run has just taken it.

    Raises:
        OSError: it cannot be made.

    """
    day, moment = time.strftime("%Y-%m-%d"), time.strftime("%H-%M-%S")
    base = Path(output_dir) / day / f"{moment}-{name}"
    base.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        folder = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{base} and 998 more like it exist already")


def withdraw(folder: Path) -> None:
    """Undo ``claim``, of a run that was refused before its first case: no trace is left, if the disk lets go of it."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # of that day, unless there are others in it
        folder.parent.rmdir()


def write_plan(folder: Path, plan: Plan, cases: Sequence[CaseRecord]) -> None:
    """``plan.jsonl``, to be read again fast, and the same for people in ``configs.yaml``. Raises OSError.

    ``cases`` are all of the folder's, those of ``plan`` among them.
    """
    places: dict[str, int] = {}
    choices = {choice.text: choice for case in cases for choice in (case.impl, *case.measures)}
    head = {**_settings(plan), "choices": [choice.to_record() for choice in choices.values()]}
    for text in choices:
        places[text] = len(places)
    lines = [json.dumps(head)]
    for case in cases:
        record = {**case.to_record(), "impl": places[case.impl.text]}
        record["measures"] = [places[measure.text] for measure in case.measures]
        lines.append(json.dumps(record, separators=(",", ":")))
    _replace(folder / PLAN, "\n".join(lines) + "\n")
    _replace(folder / CONFIGS, "---\n".join(_documents(plan, cases)))


def read_head(folder: Path) -> dict[str, Any]:
    """What ``plan.jsonl`` says beside the cases: name, baseline, launcher, log, columns. Raises OSError, ValueError."""
    with open(folder / PLAN, encoding="utf-8") as file:
        head: dict[str, Any] = json.loads(file.readline())
    return head


def is_head(folder: Path, plan: Plan) -> bool:
    """Whether ``plan.jsonl`` says what ``plan`` does, beside the cases."""
    try:
        return {**read_head(folder), **_settings(plan)} == read_head(folder)
    except (OSError, ValueError):
        return False


def read_cases(folder: Path) -> list[CaseRecord]:
    """All cases of ``plan.jsonl``, in their order. Raises OSError, ValueError, KeyError, TypeError."""
    first, *lines = (folder / PLAN).read_bytes().splitlines()
    choices = [Choice.from_record(record) for record in json.loads(first)["choices"]]
    cases = []
    for line in lines:
        record = json.loads(line)
        workload, chosen = Choice.from_record(record.pop("workload")), choices[record.pop("impl")]
        measures = tuple(choices[place] for place in record.pop("measures"))
        cases.append(CaseRecord(workload, chosen, measures, **record))
    return cases


def newest(output_dir: str, holding: str, name: str | None = None) -> Path | None:
    """The folder of the last run that has a plan and a file ``holding``, and is called ``name`` if that is given."""
    folders = [path.parent for path in Path(output_dir).glob(f"*/*/{PLAN}") if (path.parent / holding).is_file()]
    for folder in sorted(folders, key=_begun, reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if name is None or read_head(folder)["name"] == name:
                return folder
    return None


def _begun(folder: Path) -> tuple[str, str, float]:
    """By date and time; two of one second by their files."""
    return folder.parent.name, folder.name[:8], (folder / PLAN).stat().st_mtime


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "baseline": plan.baseline,
        "launcher": plan.launcher.to_record(),
        "log": [one.to_record() for one in plan.log],
        "columns": list(plan.columns),
    }


def _documents(plan: Plan, cases: Sequence[CaseRecord]) -> Iterator[str]:
    """``configs.yaml``: the resolved config of every case, one document each, after one for the run itself."""
    import yaml

    def dump(value: object) -> str:
        text: str = yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
        return text

    yield dump(_settings(plan))
    dumped: dict[str, str] = {}  # what many cases share takes most of the time
    for case in cases:
        record = {"key": case.key, **case.to_record()}
        own = dump({name: record.pop(name) for name in ("key", "workload")})
        if (shared := repr(record)) not in dumped:
            dumped[shared] = dump(record)
        yield own + dumped[shared]


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """What is known without torch: the machine, the versions, the commit, the command line. No secrets."""
    commit = _git("rev-parse", "HEAD")
    return {
        "command": redact_command(["python -m runner", *argv]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit,
        "dirty": None if commit is None else bool(_git("status", "--porcelain")),
    }


def write_environment(folder: Path, facts: dict[str, Any]) -> None:
    """``environment.json``: ``facts`` of the session that writes now. Raises OSError."""
    _replace(folder / ENVIRONMENT, json.dumps(facts, indent=2) + "\n")


def earlier_sessions(folder: Path) -> list[dict[str, Any]]:
    """What ``environment.json`` says of each session so far, in their order; a run that was resumed has several."""
    try:
        last = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
        return [*last.pop("earlier_sessions", []), last]
    except (OSError, ValueError, AttributeError):
        return []


def _replace(path: Path, text: str) -> None:
    """Write ``path`` anew: whoever reads it finds the old text or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of this source tree; None where there is no git, or the packages were installed."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
