"""What measurements have kept beside their figures: ``summary.txt`` on the terminal, the others by where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from runner.experiment.results import Row
from runner.measure import SUMMARY
from runner.report.derive import Names

MOST = 8  # summaries that a terminal is given; a grid has a thousand


def told(folder: Path, rows: Sequence[Row], names: Names) -> Iterator[str]:
    """The summaries of ``rows``, each with its case above and its other files below; then how many more there are."""
    found = [(row, file) for row in rows for file in row.files if PurePath(file).name == SUMMARY]
    for row, file in found[:MOST]:
        measure = PurePath(file).parent
        others = [PurePath(other).name for other in row.files if PurePath(other).parent == measure and other != file]
        try:
            text = (folder / file).read_text(encoding="utf-8").rstrip()
        except OSError:  # on another machine
            continue
        yield f"\n{names.case(row.case)}: {measure.name}\n{text}"
        yield f"  in {folder / measure}: {', '.join(others)}" if others else f"  in {folder / measure}"
    if len(found) > MOST:
        yield f"\n{len(found) - MOST} more summaries are in the folders of {folder / 'files'}"
