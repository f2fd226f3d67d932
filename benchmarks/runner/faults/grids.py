"""The grids of all parts: a user's functions with faults in them, the commands that run them, and what these leave."""

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
from runner.experiment.results import Row
from runner.store import journal, run_folder

GONE_BAR_S = 1.0
SHARES = {"segfault": 0.05, "hang": 0.02, "oom": 0.03, "wrong": 0.02, "build": 0.01}
STATUS = {"segfault": "crashed", "hang": "timeout", "oom": "oom", "wrong": "wrong", "build": "build_failed"}
LIMIT = 0.5  # seconds of launcher.build_limit_s
MARK = "FAULTS_BENCHMARK_MARK"  # in the environment of a command, and so of everything it starts

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
    if not begun:  # once a case: each loads this file anew
        begun = True
        with open(COUNTER, "a") as file: file.write(f"{x.shape[1]}\\n")
    return clean(x)
"""

Bar = tuple[str, str, str]


@dataclass(frozen=True)
class Part:
    """What one part has found."""

    title: str
    bars: Sequence[Bar]
    text: str


@dataclass(frozen=True)
class Ended:
    """A command that has ended by itself."""

    code: int
    wall_s: float
    err: str


def mixture(cases: int) -> dict[int, str]:
    """Which sizes of 1 to ``cases`` have which fault; always the same."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * cases))]
    return dict(zip(random.Random(0).sample(range(1, cases + 1), len(kinds)), kinds, strict=True))


def not_as(injected: Mapping[int, str], rows: Iterable[Row], cases: int) -> list[int]:
    """Sizes without the one row they should have."""
    seen: dict[int, list[str]] = {}
    for row in rows:
        seen.setdefault(size(row), []).append(row.status)
    return [one for one in range(1, cases + 1) if seen.get(one) != [STATUS.get(injected.get(one, ""), "ok")]]


def grid(file: Path, function: str, cases: int) -> list[str]:
    """The command: ``cases`` sizes of a function of the user's."""
    size = ["workload.rows=8", f"workload.cols=range(1,{cases + 1})"]
    return ["-m", "workload=gelu", *size, "impl=file", f"impl.path={file}:{function}", "device=cpu", "log=none", *QUICK]


def user_file(folder: Path, injected: Mapping[int, str], counter: Path | None = None) -> Path:
    """The user's functions, in ``folder``."""
    path = folder / "user.py"
    path.write_text(f"FAULTS = {dict(injected)}\nCOUNTER = {str(counter)!r}\n{USER}", encoding="utf-8")
    return path


def resumed(words: Sequence[str], place: Path) -> list[str]:
    """The command that goes on with what is under ``place``, or that begins."""
    there = journal_folder(place)
    if there is None:
        return [*words]
    alone = (there / run_folder.PLAN).is_file()  # killed before it was written: then the grid is to be given again
    return [*([] if alone else words), f"resume={there}", "resume.retry=[lost]"]


def start(words: Sequence[str], place: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``python -m runner <words>`` with its results under ``place``, by which its processes are marked."""
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
    """Wait for it."""
    _, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, time.perf_counter() - process.started, err)  # type: ignore[attr-defined]


def until_gone(place: Path) -> tuple[float, list[str]]:
    """Seconds until no process of a command of ``place`` is left, or the bar has passed; and those that are left."""
    started = time.monotonic()
    while (found := alive(place)) and time.monotonic() - started < GONE_BAR_S:
        time.sleep(0.002)
    return time.monotonic() - started, found


def alive(place: Path) -> list[str]:
    """Processes that a command of ``place`` has started, directly or not, and itself: what they were started as."""
    mark, found = f"{MARK}={place}".encode(), []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mark in (proc / "environ").read_bytes().split(b"\0"):
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
    return found


def journal_folder(place: Path) -> Path | None:
    """The folder under ``place`` that has a journal, if there is one."""
    return next((path.parent for path in place.glob(f"*/*/{journal.NAME}")), None)


def records(folder: Path | None) -> list[str]:
    """The key of every whole record of a row in ``folder``, however many a case has."""
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
    return [size(row) for row in journal.read(folder)] if (folder / journal.NAME).exists() else []


def size(row: Row) -> int:
    """By which a case of these grids is told from the others."""
    cols = row.case.workload.fields["cols"]
    assert isinstance(cols, int)
    return cols
