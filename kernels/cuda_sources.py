"""The CUDA C++ sources of an operation, known without importing torch: which there are, and what they include."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
DEFAULT = "default"


def variants(folder: Path) -> dict[str, Path]:
    """The variants of the operation whose folder this is: ``<op>.cu`` is "default", ``<op>_<variant>.cu`` another."""
    op = folder.name
    named = {path.stem.removeprefix(f"{op}_"): path for path in sorted(folder.glob(f"{op}_*.cu"))}
    return ({DEFAULT: folder / f"{op}.cu"} if (folder / f"{op}.cu").is_file() else {}) | named


def closure(source: Path, folders: Sequence[Path]) -> list[Path]:
    """``source`` and all it includes, directly or not, under whatever condition, found beside or in ``folders``."""
    seen: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen[path] = None
        for name in INCLUDE.findall(path.read_bytes()):
            places = (place / name.decode() for place in (path.parent, *folders))
            waiting += [place.resolve() for place in places if place.is_file()][:1]
    return sorted(seen)
