"""Processes of our own: how they find the packages, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # where the packages are, wherever the command was typed


def environment() -> dict[str, str]:
    """The environment of this process, in which ``python -m runner...`` works from any folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End ``process``, which leads a session of its own, and everything in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_tree(pid: int) -> None:
    """End ``pid`` and all it has started, also what has left its group. Does not wait for any of them.

    Each is stopped before its children are looked for, so that none is born meanwhile.
    """
    waiting, seen = [pid], []
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGSTOP)
            seen.append(one)
            waiting += children(one)
    for one in seen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Of all threads of ``pid``; none where there is no Linux to ask."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found += map(int, path.read_text().split())
    return found


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
