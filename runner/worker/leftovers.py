"""What cases have started in this process and left running: it would take CPU time from the cases to come."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path

from runner.device import processes as children
from runner.device import tools

# Inductor's own: its pool, which compiles for later cases too, and the processes in which it tries what is fastest.
INDUCTOR = re.compile(rb"\btorch[./]_inductor[./](compile_worker|\w*autotune\w*)")

LOOK_S, BUSY = 0.005, 0.25  # how long threads are watched, and the share of it beyond which one works


def busy_threads() -> bool:
    """Whether a thread of Python's that is not the main one works; False at once where there is none.

    Those of Inductor, of a progress bar or of a pool wait. False where there is no Linux.
    """
    others = [one.native_id for one in threading.enumerate() if one is not threading.main_thread() and one.native_id]
    if not others:
        return False
    before = {thread: _ran_ns(thread) for thread in others}
    time.sleep(LOOK_S)
    return any(_ran_ns(thread) - ran_ns > BUSY * LOOK_S * 1e9 for thread, ran_ns in before.items())


def _ran_ns(thread: int) -> int:
    """On a CPU, so far."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):  # it has ended, or this kernel does not count
        return 0


def processes() -> list[int]:
    """Live children of this process that neither torch nor the runner has started; none where there is no Linux.

    One that has left its parent is not among them: it is found when the worker ends.
    """
    inductor = sys.modules.get("torch._inductor.config")
    if getattr(inductor, "worker_start_method", "subprocess") != "subprocess":
        return []  # forked, its pool looks as any other child does
    me = _command("self")
    return [pid for pid in children.children(os.getpid()) if _is_left(pid, me)]


def _is_left(pid: int, me: bytes) -> bool:
    command = _command(str(pid))
    if not command:  # it has ended, and nobody has waited for it
        return False
    if command == me:  # forked; the modules that a worker is started with are named in it too
        return True
    return not INDUCTOR.search(command) and tools.run_by(pid) is None


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
