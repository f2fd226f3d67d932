"""Names and stamps of the files that a case used, as its row records them.

The worker records stamps, which cost a microsecond each; the runner turns them into digests, and into names that are
the same in every checkout.
"""

import filecmp
import hashlib
import os
from functools import cache
from importlib.machinery import all_suffixes
from pathlib import Path

FILES = "runner/files"  # the entry of a fingerprint that says whether its list of files is complete
ALL = "all"  # it is; anything else is the reason why it may not be
ABSENT = "none"  # looked for, and missing
THERE = "there"  # a module that is not missing any more
WRITTEN = "written"  # while the case used it
MODULE = ".*"  # ends the path of a module that was looked for: a folder, or a file with one of Python's suffixes


def stamp(path: str) -> str:
    """Return a text that changes with the file, the listed folder or the missing module at ``path``."""
    if path.endswith(("/", MODULE)):
        return contents(path)
    try:
        status = os.stat(path)
    except OSError:
        return ABSENT
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def contents(path: str) -> str:
    """Return a digest of the names in a folder, with ``/`` at its end, or whether a module is ABSENT."""
    if path.endswith(MODULE):
        place = path.removesuffix(MODULE)
        there = os.path.isdir(place) or any(os.path.isfile(f"{place}{suffix}") for suffix in all_suffixes())
        return THERE if there else ABSENT
    try:
        names = sorted({*os.listdir(path)} - {"__pycache__"})
    except OSError:
        return ABSENT
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:12]


def is_equal(path: str, other: str) -> bool:
    """Return whether two files have the same bytes, two folders the same names, or both modules are ABSENT."""
    if path.endswith(("/", MODULE)):
        return contents(path) == contents(other)
    if os.path.isfile(path) and os.path.isfile(other):
        return filecmp.cmp(path, other, shallow=False)
    return not (os.path.lexists(path) or os.path.lexists(other))


@cache
def repository(folder: str) -> Path:
    """Return the top of the git repository around ``folder``, links resolved; ``folder`` itself without one."""
    real = Path(folder).resolve()
    return next((place for place in (real, *real.parents) if (place / ".git").exists()), real)
