"""Where a traceback leads: the last of its lines that is neither the runner's nor a library's."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from runner.device.processes import ROOT

FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
KERNELS = (ROOT / "runner" / "kernels", ROOT / "kernels")  # a link in a checkout, which a traceback may follow
LIBRARIES = {"site-packages", "dist-packages", "torch"}  # a folder of a path, anywhere in it


def place(detail: str) -> str:
    """``k.py:6``, or ``kernels/gelu/triton.py:34`` of ours; empty if ``detail`` is no traceback or has no such line."""
    frames = FRAME.findall(detail) if detail.startswith("Traceback ") else []
    theirs = [(Path(file), line) for file, line in frames if _is_theirs(Path(file))]
    if not theirs:
        return ""
    path, line = theirs[-1]
    return f"{_short(path)}:{line}"


def _short(path: Path) -> str:
    """``kernels/gelu/triton.py`` of ours, else the file's name."""
    for root in KERNELS:
        if path.is_relative_to(root):
            return f"kernels/{path.relative_to(root)}"
    return path.name


def _is_theirs(path: Path) -> bool:
    if any(path.is_relative_to(root) for root in KERNELS):  # wherever all of it is installed
        return True
    of_python = path.is_relative_to(sysconfig.get_path("stdlib")) or str(path).startswith("<")
    return not (of_python or LIBRARIES & set(path.parts) or path.is_relative_to(ROOT / "runner"))
