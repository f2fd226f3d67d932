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
