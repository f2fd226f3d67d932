"""Grids with faults, shared by all parts: the user's functions, the commands that run them, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import LIMIT_S, ROOT
from runner.records.row import Row
from runner.store import journal, run_folder

GONE_BAR_S = 1.0
SHARES = {"segfault": 0.05, "hang": 0.02, "oom": 0.03, "wrong": 0.02, "build": 0.01}
STATUS = {"segfault": "crashed", "hang": "timeout", "oom": "oom", "wrong": "wrong", "build": "build_failed"}
LIMIT = 0.5  # launcher.build_limit_s, in seconds
MARK = "FAULTS_BENCHMARK_MARK"  # in the environment of a command and of all processes that it starts

QUICK = ["measure.benchmark.samples=20", "measure.benchmark.warmup_s=0.001", "measure.benchmark.paired_rounds=0"]
QUICK += ["measure.benchmark.max_s=0.02", f"launcher.build_limit_s={LIMIT}"]
USER = """
import ctypes, os, torch

def clean(x):
    return torch.nn.functional.gelu(x, approximate="tanh")

def mixed(x):
    fault = FAULTS.get(x.shape[1])
    if fault == "segfault": ctypes.string_at(0)
    if fault == "hang":
        while True: pass
    if fault == "oom": raise MemoryError("injected")
    if fault == "build": raise ImportError("injected")
    return clean(x) + (fault == "wrong")

begun = False

def counted(x):
    global begun
    if not begun:  # once per case, since each case loads this file again
        begun = True
        with open(COUNTER, "a") as file: file.write(f"{x.shape[1]}\\n")
    return clean(x)
"""

Bar = tuple[str, str, str]


@dataclass(frozen=True)
class Part:
    """The results of one part."""

    title: str
    bars: Sequence[Bar]
    text: str


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    wall_s: float
    err: str


def mixture(cases: int) -> dict[int, str]:
    """Return the faults of a grid by size, 1 to ``cases``. They are the same each time."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * cases))]
    return dict(zip(random.Random(0).sample(range(1, cases + 1), len(kinds)), kinds, strict=True))


def not_as(injected: Mapping[int, str], rows: Iterable[Row], cases: int) -> list[int]:
    """Return the sizes that do not have exactly one row with the status of their fault."""
    seen: dict[int, list[str]] = {}
    for row in rows:
        seen.setdefault(size(row), []).append(row.status)
    return [one for one in range(1, cases + 1) if seen.get(one) != [STATUS.get(injected.get(one, ""), "ok")]]


def grid(file: Path, function: str, cases: int) -> list[str]:
    """Return the words of a command that runs ``cases`` sizes of a user's function."""
    size = ["workload.rows=8", f"workload.cols=range(1,{cases + 1})"]
    return ["-m", "workload=gelu", *size, "impl=file", f"impl.path={file}:{function}", "device=cpu", "log=none", *QUICK]


def user_file(folder: Path, injected: Mapping[int, str], counter: Path | None = None) -> Path:
    """Write the file of the user's functions into ``folder``."""
    path = folder / "user.py"
    path.write_text(f"FAULTS = {dict(injected)}\nCOUNTER = {str(counter)!r}\n{USER}", encoding="utf-8")
    return path


def resumed(words: Sequence[str], place: Path) -> list[str]:
    """Return the command that resumes the run under ``place``, or that begins it."""
    there = journal_folder(place)
    if there is None:
        return [*words]
    alone = (there / run_folder.PLAN).is_file()  # a kill before it is written: the grid must be given again
    return [*([] if alone else words), f"resume={there}", "resume.retry=[lost]"]


def start(words: Sequence[str], place: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start ``python -m runner <words>`` with its results under ``place``, which also marks its processes."""
    command = [sys.executable, "-m", "runner", *words, f"output_dir={place}"]
    place.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {MARK: str(place)} | dict(environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.started = time.perf_counter()  # type: ignore[attr-defined]
    return process


def ends(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end of ``process``."""
    _, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, time.perf_counter() - process.started, err)  # type: ignore[attr-defined]


def until_gone(place: Path) -> tuple[float, list[str]]:
    """Wait up to the bar until no process of ``place`` is left. Return the seconds, and the processes left."""
    started = time.monotonic()
    while (found := alive(place)) and time.monotonic() - started < GONE_BAR_S:
        time.sleep(0.002)
    return time.monotonic() - started, found


def alive(place: Path) -> list[str]:
    """Return the command lines of all processes of ``place``."""
    mark, found = f"{MARK}={place}".encode(), []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            if mark in (proc / "environ").read_bytes().split(b"\0"):
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
    return found


def journal_folder(place: Path) -> Path | None:
    """Return the folder under ``place`` that has a journal, or None."""
    return next((path.parent for path in place.glob(f"*/*/{journal.NAME}")), None)


def records(folder: Path | None) -> list[str]:
    """Return the keys of all complete row records in ``folder``; a case may have several."""
    if folder is None or not (folder / journal.NAME).exists():
        return []
    lines = (folder / journal.NAME).read_bytes().splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # torn
            record = json.loads(line)
            found += [record["key"]] if record["record"] == "row" else []
    return found


def sizes(folder: Path) -> list[int]:
    """Return the sizes of the cases that have a row in ``folder``, if there is a journal."""
    return [size(row) for row in journal.read_rows(folder)] if (folder / journal.NAME).exists() else []


def size(row: Row) -> int:
    """Return the size that identifies a case of these grids."""
    cols = row.case.workload.fields["cols"]
    assert isinstance(cols, int)
    return cols
