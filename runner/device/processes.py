"""Child processes: their environment, their output, and their end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

OOM_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]  # the folder of the packages


def environment(*folders: str) -> dict[str, str]:
    """Return this process's environment, in which ``python -P -m runner...`` works from any folder.

    Without -P, a folder called ``runner`` in the current one would be imported. Modules in ``folders`` can be imported
    too.
    """
    path = [str(ROOT), *folders, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def output(command: Sequence[str], limit_s: float = 20.0) -> str | None:
    """Return what ``command`` prints; None if it cannot be started, fails, or is killed at ``limit_s``."""
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
            kill_group(process, 1.0)  # a process that hangs in the driver may never end; it is left behind
    return text.decode(errors="replace") if process.returncode == 0 else None


def kill_group(process: subprocess.Popen[bytes], wait_s: float | None = None) -> None:
    """Kill ``process``, which leads a session of its own, and its group. Wait until it ends, for at most ``wait_s``."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)


def kill_tree(pid: int) -> None:
    """Kill ``pid`` and its descendants, also those that left its group. Does not wait for them.

    Each is stopped before its children are listed, so that it starts no further ones.
    """
    waiting, stopped = [pid], []
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGSTOP)
            stopped.append(one)
            waiting += children(one)
    for one in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill all processes whose environment had ``mark``, ``NAME=value``, when they started, and their descendants.

    So those end that have left their parent and its session. None are found without /proc.
    """
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                kill_tree(int(path.name))


def children(pid: int) -> list[int]:
    """Return the children of all threads of ``pid``; none without /proc."""
    found: list[int] = []
    threads = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):  # one may have just ended
            with contextlib.suppress(OSError), open(f"{threads}/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 where it does not tell."""
    with contextlib.suppress(OSError), open("/proc/vmstat", "rb") as file:
        if count := OOM_KILLS.search(file.read()):
            return int(count[1])
    return 0


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
