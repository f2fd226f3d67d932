"""The table of ``show --fastest``, and the sentences of ``show --summary``: one line per problem."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..findings.conclusion import LONE
from ..findings.fastest import leaders, ranges_of_winners
from ..findings.lines import Line
from ..findings.names import Names
from ..findings.notes import TIED
from ..findings.run import Run
from ..records.case import CaseRecord
from ..records.figures import as_typed, factor, factors, figure, listed
from ..records.options import option_defaults
from ..records.plain_text import encodable
from .case_table import MARKS
from .console import FILE_WIDTH
from .table import Table

HEADS = ("problem", "fastest", "time", "ahead by", "95 % interval", "of the next", "conclusion")
NONE = "none is correct and timed"


def fastest_table(run: Run, lines: Sequence[Line]) -> Table:
    """Return one row per problem, and below them where another implementation becomes the fastest."""
    every, rows = leaders(run, lines), []
    for leader in every:
        mark, labels = MARKS[leader.word], ", ".join(leader.fastest)
        time_us = leader.line.shown.time_us if leader.line else None
        figures = [figure(time_us, "us"), factor(leader.ahead, 3), factors(leader.low, leader.high)]
        first = [run.names.heading(leader.case), f"{mark} {labels}" if labels else NONE]
        rows.append([*first, *figures, leader.next, leader.conclusion])
    notes = [*([TIED] if any(leader.fastest[1:] for leader in every) else []), *ranges_of_winners(every, run.names)]
    title = run.heading(run.rows_of(lines), FILE_WIDTH)
    return Table(title, HEADS, [("", rows)], notes, left=frozenset({0, 1, 5, 6}))


def summary(run: Run, lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence per problem: ``triton is 1.29 ± 0.01 times as fast as torch: softmax 16384²``.

    The other one is the baseline; of a problem that the baseline wins, the next.
    """
    bases = {line.case.problem: line for line in lines if line.baseline}
    for leader in leaders(run, lines):
        labels, line, base = leader.fastest, leader.line, bases.get(leader.case.problem)
        said = f"{listed(labels)} cannot be told apart" if labels else NONE
        if len(labels) == 1:
            said = f"{labels[0]} {'has the shortest time' if leader.next else LONE}"
            ratio, other = (leader.ahead, leader.low, leader.high), leader.next
            if line and base and base is not line and line.vs_baseline != "unclear":
                ratio, other = (line.speedup, line.speedup_low, line.speedup_high), run.names.impl(base.case)
            if ratio[0] and (other != leader.next or leader.conclusion in ("faster", "same")):
                said = f"{labels[0]} is {_plus_minus(*ratio)} times as fast as {other}"
        yield encodable(f"{said}: {_brief(leader.case, run.names)}", sys.stdout.encoding)


def _plus_minus(ratio: float | None, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{ratio:.2f}"
    digits = 2 if high - low >= 0.01 else 3
    return f"{ratio:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def _brief(case: CaseRecord, names: Names) -> str:
    """Return the problem of ``case`` by its sizes and what else varies: ``softmax 64x1000 bfloat16``, ``gelu 64²``."""
    fields, shape = case.workload.fields, option_defaults(f"workload/{case.workload.name}").get("shape", ())
    named = shape if shape and fields.keys() >= {*shape} else [name for name in fields if type(fields[name]) is int]
    sizes, varied = [fields[name] for name in named], names.problem(case).items()
    others = [(name, value) for name, value in varied if name not in named and value not in sizes]
    power = {2: "²", 3: "³"}.get(len(sizes), "") if len({*sizes}) == 1 else ""
    text = f"{sizes[0]}{power}" if power else "x".join(map(str, sizes))
    words = [str(value) if isinstance(value, str) else f"{name}={as_typed(value)}" for name, value in others]
    return " ".join(filter(None, [case.workload.name, text, *words]))


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
        for leader in leaders(run, lines)
    ]
