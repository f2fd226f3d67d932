"""Records in the user's cache folder. A record is valid as long as the facts in its file name stay the same."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import replace_file


def cache_folder(kind: str) -> Path:
    """Return ``$XDG_CACHE_HOME/kernel-runner/<kind>``, by default under ``~/.cache``. It need not exist."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the XDG Base Directory Specification ignores relative ones
        return Path(named, "kernel-runner", kind)
    try:
        return Path.home() / ".cache" / "kernel-runner" / kind
    except RuntimeError:  # a user without a home, in a container: nothing is kept
        return Path(os.devnull, kind)


def cache_file(kind: str, facts: Mapping[str, str], version: int) -> Path:
    """Return the file for ``facts``, written in format ``version``: ``<uuid>-<8 hex digits>.json``."""
    text = json.dumps({"version": version, **facts}, sort_keys=True, separators=(",", ":"))
    return cache_folder(kind) / f"{facts.get('uuid') or 'unknown'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record in ``path``; None if there is none, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else None
    return None


def write_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Write ``record`` to ``path`` whole or not at all; return whether it could be written.

    Raises TypeError if ``record`` is not JSON-serializable.
    """
    text = json.dumps(record, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError:
        return False
    return True
