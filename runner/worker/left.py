"""Processes that cases have started in this one and left running: they would take CPU time from the cases to come."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from runner import child, tool

# Inductor's own: its pool, which compiles for later cases too, and the processes in which it tries what is fastest.
INDUCTOR = re.compile(rb"\btorch[./]_inductor[./](compile_worker|\w*autotune\w*)")


def processes() -> list[int]:
    """Live children of this process that neither torch nor the runner has started; none where there is no Linux.

    One that has left its parent is not among them: it is found when the worker ends.
    """
    inductor = sys.modules.get("torch._inductor.config")
    if getattr(inductor, "worker_start_method", "subprocess") != "subprocess":
        return []  # forked, its pool looks as any other child does
    me = _command("self")
    return [pid for pid in child.children(os.getpid()) if _is_left(pid, me)]


def _is_left(pid: int, me: bytes) -> bool:
    command = _command(str(pid))
    if not command:  # it has ended, and nobody has waited for it
        return False
    if command == me:  # forked; the modules that a worker is started with are named in it too
        return True
    return not INDUCTOR.search(command) and tool.run_by(pid) is None


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
