"""``outputs/<date>/<time>-<name>/``: a folder that no two runs share, and what stands in it before the first row."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.case import Plan
from runner.child import ROOT

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "numpy", "pandas", "wandb")
SECRET = re.compile(r"(\w*(?:key|token|secret|password)\w*)=.+", re.IGNORECASE)


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


def write_configs(folder: Path, plan: Plan) -> None:
    """``configs.yaml``: the resolved config of every case, one document each, after one for the run itself."""
    import yaml

    documents: list[dict[str, Any]] = [
        {
            "name": plan.name,
            "baseline": plan.baseline,
            "launcher": plan.launcher.to_record(),
            "log": plan.log.to_record(),
        }
    ]
    documents += [{"key": case.key, **case.to_record()} for case in plan.cases]
    text = yaml.dump_all(documents, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    (folder / "configs.yaml").write_text(text, encoding="utf-8")


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """What is known without torch: the machine, the versions, the commit, the command line. No secrets."""
    commit = _git("rev-parse", "HEAD")
    return {
        "command": " ".join(["python -m runner", *(SECRET.sub(r"\1=<redacted>", word) for word in argv)]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit,
        "dirty": None if commit is None else bool(_git("status", "--porcelain")),
    }


def write_environment(folder: Path, facts: dict[str, Any]) -> None:
    """``environment.json``."""
    (folder / "environment.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


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
