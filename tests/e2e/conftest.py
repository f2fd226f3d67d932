"""Drive the real command line in a process of its own, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Result:
    """What a user sees of a finished command, and the folder it left."""

    code: int
    out: str
    err: str
    folder: Path | None

    def rows(self) -> list[dict]:
        """The journal's row records."""
        return self.records("row")

    def records(self, kind: str) -> list[dict]:
        """The journal's records of one kind."""
        assert self.folder is not None, self.err
        with open(self.folder / "rows.jsonl", encoding="utf-8") as lines:
            return [record for record in map(json.loads, lines) if record["record"] == kind]

    def statuses(self) -> dict[str, str]:
        """Implementation → status, for grids of one point."""
        return {row["case"]["impl"]["name"]: row["status"] for row in self.rows()}


@pytest.fixture
def command(tmp_path):
    """The command line up to its arguments, and the keyword arguments for ``subprocess``."""

    def build(*arguments: str, log: str = "none", env: dict[str, str] | None = None):
        words = [f"output_dir={tmp_path / 'outputs'}", *([f"log={log}"] if log else [])]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRITON_"))}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **(env or {})}  # as on a laptop
        return [sys.executable, "-m", "runner", *words, *arguments], {"cwd": tmp_path, "env": environment}

    return build


@pytest.fixture
def folder_with_rows(tmp_path, eventually):
    """``folder_with_rows(count)``: of the run going on, when its journal has so many rows."""

    def find(count: int) -> Path:
        def found() -> list[Path]:
            journals = tmp_path.glob("outputs/*/*/rows.jsonl")
            return [path.parent for path in journals if path.read_text().count('"record":"row"') >= count]

        assert eventually(lambda: bool(found())), "no rows came"
        return found()[0]

    return find


@pytest.fixture
def run(command, tmp_path):
    """Run the command to its end."""

    def go(*arguments: str, log: str = "none", env: dict[str, str] | None = None, timeout_s: float = 300) -> Result:
        words, options = command(*arguments, log=log, env=env)
        done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=timeout_s, check=False, **options)
        folders = sorted((tmp_path / "outputs").glob("*/*"))
        return Result(done.returncode, done.stdout, done.stderr, folders[-1] if folders else None)

    return go
