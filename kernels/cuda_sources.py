"""Find the CUDA C++ sources of an operation and the files that they include, without importing torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
DEFAULT = "default"


def variants(folder: Path) -> dict[str, Path]:
    """Map the variants in an operation's folder to their files.

    ``<op>.cu`` is the variant "default", ``<op>_<variant>.cu`` is the variant of that name.
    """
    op = folder.name
    named = {path.stem.removeprefix(f"{op}_"): path for path in sorted(folder.glob(f"{op}_*.cu"))}
    return ({DEFAULT: folder / f"{op}.cu"} if (folder / f"{op}.cu").is_file() else {}) | named


def closure(source: Path, folders: Sequence[Path]) -> list[Path]:
    """Return ``source`` and all files that it includes, directly or not, sorted.

    An included file is searched beside the file that includes it, then in ``folders``. Conditions (``#if``) are
    ignored: every ``#include`` line counts. A file that is not found is left out.
    """
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
