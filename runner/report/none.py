"""``log=none``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class None_:  # noqa: N801  # None is taken
    """Nobody hears of it."""

    def publish(self, folder: Path) -> list[str]:
        """Nothing."""
        return []
