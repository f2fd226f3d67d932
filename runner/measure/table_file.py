"""A table that a measurement keeps: a CSV beside the rows, which W&B shows as a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def write(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> None:
    """``lines`` by ``columns``, which are there even if no line is."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)
