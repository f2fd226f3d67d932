"""What ``python -m runner verify`` found on this machine, kept for the runs after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from runner import __version__
from runner.device import cache

FORMAT = 1  # of the file, and of what the checks ask: another number makes older certificates void


def write(facts: Mapping[str, str], device: str, findings: Sequence[Mapping[str, Any]]) -> Path | None:
    """Keep ``findings``, each with a ``name`` and whether it ``passed``, as the certificate of ``facts``.

    Returns:
        The file, in which an older one is replaced; None if the disk will not have it.

    """
    path = cache.place("certificate", facts, FORMAT)
    record = {
        "identity": dict(facts),
        "taken": datetime.now().astimezone().isoformat(timespec="seconds"),
        "runner_version": __version__,
        "device": device,
        "findings": [dict(finding) for finding in findings],
        "passed": sum(bool(finding["passed"]) for finding in findings),
        "of": len(findings),
    }
    return path if cache.write(path, record) else None


def summary(facts: Mapping[str, str]) -> dict[str, Any] | None:
    """``taken``, ``passed``, ``of`` and the names of what ``failed``; None if nothing is certified for ``facts``.

    A certificate is this version's: another one measures in its own way.
    """
    record = cache.read(cache.place("certificate", facts, FORMAT))
    if record is None or record.get("identity") != dict(facts) or record.get("runner_version") != __version__:
        return None
    try:
        return {
            "taken": str(record["taken"]),
            "passed": int(record["passed"]),
            "of": int(record["of"]),
            "failed": [str(finding["name"]) for finding in record["findings"] if not finding["passed"]],
        }
    except (KeyError, TypeError, ValueError):  # it has been edited
        return None
