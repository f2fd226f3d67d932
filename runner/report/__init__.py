"""Readers of rows. Nothing here measures, and nothing here writes a result that the journal does not hold.

To add a reporter is to add a file ``<name>.py`` with its class, and ``conf/log/<name>.yaml``: then ``log=[<name>]``
chooses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.text import Text


class Hint(str):
    """A message that a run prints only on a terminal, or if the user has chosen the reporter."""


class Reporter(Protocol):
    """Reports a finished run. A dataclass whose fields are those of its YAML."""

    def publish(self, folder: Path) -> Sequence[Text | str]:
        """Report the run in ``folder`` and return messages for the user. Raise nothing: no reporter can fail a run."""
