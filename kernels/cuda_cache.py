"""What CUDA C++ is built into, kept on disk: a private folder of the user's cache, which may be deleted.

A file is named by all that shaped it, so nothing here is ever out of date: what has changed has another name. It holds
machine code which will be loaded, hence the folder is the user's own (0700), or nothing is kept.
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
    """``$XDG_CACHE_HOME/kernel-runner/cuda``, by default under ``~/.cache``; None if it is not to be had privately."""
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
    """A name of ``facts``, which are written as JSON, and of the bytes of ``sources``."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def read(name: str) -> tuple[dict[str, str], bytes] | None:
    """The words and the code that were written under ``name``; None if there are none, or not whole."""
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
    """Keep ``words`` and ``code`` under ``name``, whole or not at all: a full disk costs only the next build."""
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
