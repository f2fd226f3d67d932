"""What is dear to find out and stays true: small JSON records in the user's cache folder, which may be deleted."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def folder(kind: str) -> Path:
    """``$XDG_CACHE_HOME/kernel-runner/<kind>``, by default under ``~/.cache``. ``write`` makes it if need be."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # a relative one is to be ignored (XDG Base Directory Specification)
        return Path(named, "kernel-runner", kind)
    try:
        return Path.home() / ".cache" / "kernel-runner" / kind
    except RuntimeError:  # a user without a name in a container: then nothing is kept
        return Path(os.devnull, kind)


def place(kind: str, facts: Mapping[str, str], version: int) -> Path:
    """The file of what holds for ``facts`` and is written in format ``version``: ``<uuid>-<8 hex digits>.json``."""
    text = json.dumps({"version": version, **facts}, sort_keys=True, separators=(",", ":"))
    return folder(kind) / f"{facts.get('uuid') or 'unknown'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def read(path: Path) -> dict[str, Any] | None:
    """The record in ``path``; None if there is none, or what is there is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write(path: Path, record: Mapping[str, Any]) -> bool:
    """Put ``record`` in ``path``, whole or not at all. False if the disk will not have it.

    Raises TypeError if ``record`` cannot be written as JSON.
    """
    text = json.dumps(record, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    except OSError:
        return False
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        _remove(name)
        return False
    return True


def _remove(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        return
