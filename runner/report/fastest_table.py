"""The table of ``show --fastest``: one line per problem."""

from collections.abc import Sequence
from typing import Any

from ..findings.fastest import leaders, ranges_of_winners
from ..findings.lines import Line
from ..findings.notes import TIED
from ..findings.run import Run
from ..records.figures import factor, factors, figure
from .case_table import MARKS
from .console import FILE_WIDTH
from .table import Table

HEADS = ("problem", "fastest", "time", "ahead by", "95 % interval", "of the next", "conclusion")
NONE = "none is correct and timed"


def fastest_table(run: Run, lines: Sequence[Line]) -> Table:
    """Return one row per problem, and below them where another implementation becomes the fastest."""
    every, rows = leaders(lines, run.names), []
    for leader in every:
        mark, labels = MARKS[leader.word], ", ".join(leader.fastest)
        time_us = leader.line.shown.time_us if leader.line else None
        figures = [figure(time_us, "us"), factor(leader.ahead, 3), factors(leader.low, leader.high)]
        first = [run.names.heading(leader.case), f"{mark} {labels}" if labels else NONE]
        rows.append([*first, *figures, leader.next, leader.conclusion])
    notes = [*([TIED] if any(leader.fastest[1:] for leader in every) else []), *ranges_of_winners(every, run.names)]
    title = run.heading(run.rows_of(lines), FILE_WIDTH)
    return Table(title, HEADS, [("", rows)], notes, left=frozenset({0, 1, 5, 6}))


def fastest_records(run: Run, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the rows of ``fastest_table`` with plain numbers."""
    return [
        {
            "workload": leader.case.workload.name,
            **{f"workload.{name}": value for name, value in leader.case.workload.fields.items()},
            **run.names.settings(leader.case),
            "fastest": ", ".join(leader.fastest) or None,
            "time_us": leader.line and leader.line.time_us,
            "paired_time_us": leader.line and leader.line.paired_time_us,
            "ahead_by": leader.ahead,
            "ahead_low": leader.low,
            "ahead_high": leader.high,
            "next": leader.next or None,
            "conclusion": leader.conclusion or None,
        }
        for leader in leaders(lines, run.names)
    ]
