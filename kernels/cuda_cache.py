"""Cache of compiled CUDA C++ on disk, in a private folder of the user. The folder may be deleted at any time.

The name of a file is a hash of everything that shaped its content, so no file is ever out of date: after a change, the
build has another name. The files hold machine code that will be loaded, so the folder must belong to the user alone
(mode 0700); else nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/kernel-runner/cuda``, by default under ``~/.cache``, and create it if needed.

    Return None if it cannot be created, or belongs to another user.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        place = base / "kernel-runner" / "cuda"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.stat()
        if status.st_uid != os.getuid():
            return None
        if status.st_mode & 0o077:
            place.chmod(0o700)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    return place


def key(*facts: object, sources: Iterable[Path] = ()) -> str:
    """Return a hash of ``facts``, as JSON, and of the bytes of ``sources``: 32 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def read(name: str) -> tuple[dict[str, str], bytes] | None:
    """Return the metadata and the code that were written under ``name``; None if the file is missing or damaged."""
    place = folder()
    try:
        content = b"" if place is None else (place / name).read_bytes()
    except OSError:
        return None
    head, _, code = content.partition(b"\n")
    try:
        words: dict[str, str] = json.loads(head)
        whole = words["sha256"] == hashlib.sha256(code).hexdigest()
    except (ValueError, KeyError, TypeError):
        return None
    return (words, code) if whole else None


def write(name: str, words: dict[str, str], code: bytes) -> None:
    """Write the metadata ``words`` and ``code`` under ``name``, atomically.

    Errors of the disk are ignored: they cost only another build next time.
    """
    place = folder()
    if place is None:
        return
    head = json.dumps({**words, "sha256": hashlib.sha256(code).hexdigest()}).encode()
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(prefix=".", dir=place)  # 0600
        try:
            with open(handle, "wb") as file:
                file.write(head + b"\n" + code)
            os.replace(temporary, place / name)
        except OSError:
            os.unlink(temporary)
            raise
