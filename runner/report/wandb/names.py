"""What W&B allows in names, and the name of the group of single cases."""

from __future__ import annotations

from pathlib import Path

REFUSED = "/\\#?%:"  # W&B takes none of these in a project's name
PROJECT_LENGTH, NAME_LENGTH, TAG_LENGTH = 128, 128, 64  # most characters; a name is that of a run, group or job type


def group_of(folder: Path, group: str | None) -> str:
    """Return the group of the runs of single cases: ``group`` if the user gives it, else ``<date>/<time>-<name>``."""
    return group or "/".join(folder.resolve().parts[-2:])[-NAME_LENGTH:]
