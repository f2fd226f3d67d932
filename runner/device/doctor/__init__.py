"""What this machine can do, and what to type for each thing that it cannot yet. One file for each kind of thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "missing"]  # note: it works, but not as well as it could


@dataclass(frozen=True)
class Finding:
    """One thing: what was found of it, and what to do unless it is ok."""

    what: str
    found: str
    state: State = "ok"
    advice: str = ""


def examine() -> Iterator[tuple[str, list[Finding]]]:
    """Each kind of thing, and what was found; a kind that cannot be looked at says so."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        try:
            findings = import_module(f"runner.device.doctor.{path.stem}").look()
        except Exception as error:  # what is wrong with one kind hides no other
            findings = [Finding(path.stem, f"{type(error).__name__}: {error}", "note", "please report this")]
        yield path.stem, findings
