"""Readers of rows. Nothing here measures, and nothing here writes a result that the journal does not hold.

A reporter is a class in a file of this folder, called as ``log=[<file>]`` names it; to add one is to add the file and a
YAML in ``conf/log/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Reporter(Protocol):
    """Passes a finished run on. A dataclass whose fields are those of its YAML.

    Nothing that a reporter does can fail a run, since the results are in the folder already.
    """

    def publish(self, folder: Path) -> list[str]:
        """Report the run in ``folder`` and return messages for the user, one a line. Raises nothing."""
