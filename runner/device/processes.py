"""Child processes: their environment, their output, and their end."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .files import text_in

OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]  # the folder of the packages


def environment() -> dict[str, str]:
    """Return this process's environment, in which ``python -P -m runner...`` works from any folder.

    Without -P, and by an empty entry of PYTHONPATH, modules of the current folder would come before Python's own. Plots
    of a user's file open no window, which would wait until it is closed.
    """
    path = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "MPLBACKEND": "Agg"}


def output(command: Sequence[str], limit_s: float = 20.0) -> str | None:
    """Return the output of ``command``; None if it cannot be started, fails, or is killed at ``limit_s``."""
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


def ending(code: int) -> str:
    """Return how a process with this exit code ended: ``exited with code 1`` or ``was killed by SIGABRT``."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def kill_group(process: subprocess.Popen[bytes], wait_s: float | None = None) -> None:
    """Kill ``process``, which leads its own session, and its group. Wait until it ends, for at most ``wait_s``."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)


def kill_tree(pid: int) -> None:
    """Kill ``pid`` and its descendants, including processes that left its group, without waiting for their end.

    Each is stopped before its children are listed, so that it cannot start more.
    """
    waiting, stopped = [pid], []
    while waiting:
        process = waiting.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGSTOP)
            stopped.append(process)
            waiting += children(process)
    for process in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill all processes that were started with ``mark``, ``NAME=value``, in their environment, and their descendants.

    This finds processes that have left their parent and its session. It needs /proc.
    """
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended or belongs to another user
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                kill_tree(int(path.name))


def children(pid: int) -> list[int]:
    """Return the children of all threads of ``pid``; [] without /proc."""
    pids: list[int] = []
    threads = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):  # a thread may have just ended
            with contextlib.suppress(OSError), open(f"{threads}/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    return pids


def oom_kills() -> int:
    """Return the number of processes that the system has killed for lack of memory; 0 if unknown."""
    count = OOM_KILLS.search(text_in("/proc/vmstat"))
    return int(count[1]) if count else 0


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
