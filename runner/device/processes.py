"""Processes of our own: how they find the packages, and how they end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

OOM_SCORE = "800"  # of 1000
OOM_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]  # where the packages are, wherever the command was typed


def environment() -> dict[str, str]:
    """The environment of this process, in which ``python -m runner...`` works from any folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def output(command: Sequence[str], limit_s: float = 20.0) -> str | None:
    """What ``command`` prints; None if there is none, it fails, or has not ended after ``limit_s`` and was killed."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=max(0.0, limit_s))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # stuck in the driver, it may never end: then it is left behind
    return text.decode(errors="replace") if process.returncode == 0 else None


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
    """Return the children of all threads of ``pid``; none where there is no /proc."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found += map(int, path.read_text().split())
    return found


def prefer_me_when_memory_is_out() -> None:
    """Let the kernel, when the machine's memory is out, take this process rather than those that started it."""
    with contextlib.suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def oom_kills() -> int:
    """Processes of this machine that its kernel has ended for want of memory; 0 where it does not tell."""
    with contextlib.suppress(OSError):
        if told := OOM_KILLS.search(Path("/proc/vmstat").read_bytes()):
            return int(told[1])
    return 0


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
