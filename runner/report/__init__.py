"""Readers of rows. Nothing here measures, and nothing here writes a result that the journal does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Logger(Protocol):
    """Fields are those of its YAML. Nothing it does can fail a run: the results are in the folder already."""

    def publish(self, folder: Path) -> list[str]:
        """Log the finished run in ``folder``; gives what to tell the user, a line each. Raises nothing."""
