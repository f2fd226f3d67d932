"""Tables of measurements: as CSV files beside the rows, which W&B shows as tables, and in columns on the terminal."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path


def write(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> None:
    """``lines`` by ``columns``, which are there even if no line is."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)


def aligned(lines: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """A line of text each, indented: the columns ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if place in left else ">" for place in range(len(widths))]
    texts = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True))
        for line in lines
    ]
    return [f"  {text}".rstrip() for text in texts]
