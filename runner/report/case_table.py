"""The table of cases, grouped by problem."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ..findings.lines import WINS, Line
from ..findings.names import Names
from ..findings.notes import ALONE, footnotes, mixed, row_notes
from ..findings.run import Run
from ..findings.validity import verdict
from ..measure import SUMMARY
from ..measure.columns import column_of, known_columns
from ..measure.columns import columns as measured_columns
from ..records.columns import STATUSES, TERMS, VERDICTS, Column
from ..records.figures import figure, interval
from ..records.row import Row
from .console import FILE_WIDTH
from .table import Mark, Table, draw, rich_text

if TYPE_CHECKING:
    from rich.text import Text


MOST_OWN = 8  # columns of measurements in a table
MARKS = {"yes": "★", "tied": "≈", "only": " ", "unknown": " ", "no": " "}  # by the column ``fastest``


def usual_columns() -> dict[str, Column]:
    """Return the columns that the table has if none are chosen, in their order."""
    shown = {name: column for name, column in known_columns().items() if column.place}
    return dict(sorted(shown.items(), key=lambda item: item[1].place))


def table_of(lines: Sequence[Line], names: Names, chosen: Sequence[str] = ()) -> Table:
    """Return the table: one line per case, under a heading per problem that says what varies.

    It has the ``chosen`` columns of docs/columns.md, or the usual ones that are not empty and the first ones of the
    measurements: in place of a time, or behind it those that no summary below the table has.
    """
    timed = any(line.time_us for line in lines)
    own, usual = _of_measurements(lines, timed), usual_columns()
    columns = {name: column_of(name) for name in chosen} or ({**usual, **own} if timed else {**own, **usual})
    cells = {
        name: [_chosen(column, names.value(line, name)) if chosen else _usual(column, line, name) for line in lines]
        for name, column in columns.items()
    }
    if not chosen and mixed(lines):
        texts = zip(lines, cells["time_us"], strict=True)
        cells["time_us"] = [f"{ALONE} {text}" if text and line.paired_time_us is None else text for line, text in texts]
    cells = {name: texts for name, texts in cells.items() if chosen or any(texts)}
    impls = [f"{MARKS[line.fastest]} {names.impl(line.case)}" for line in lines]
    verdicts = [verdict(line.row) for line in lines]
    rows = zip(impls, *cells.values(), verdicts, strict=True)
    groups, last = list[tuple[str, Sequence[Sequence[str]]]](), len(cells) + 1
    for _, members in groupby(zip(lines, rows, strict=True), lambda pair: pair[0].case.problem):
        (line, row), *others = members
        groups.append((names.heading(line.case), [row, *(row for _, row in others)]))
    marks: dict[int, dict[int, Mark]] = {}
    for number, line in enumerate(lines):
        if line.fastest in WINS:
            marks[number] = {0: "best"}
        if verdicts[number] != "ok":
            marks[number] = {**marks.get(number, {}), last: "bad" if line.row.failed else "odd"}
    heads = ["implementation", *(name if chosen else columns[name].title for name in cells), "verdict"]
    drop = {} if chosen else {at: columns[name].drop for at, name in enumerate(cells, 1) if columns[name].drop}
    left = frozenset({0, last})
    return Table("", heads, groups, left=left, names=["", *cells, ""], drop=drop, marks=marks)


def _of_measurements(lines: Sequence[Line], timed: bool) -> dict[str, Column]:
    """Return the first columns of the measurements of ``lines`` that have values; if ``timed``, without summaries."""
    measures = {measure.name for line in lines for measure in line.case.measures}
    if timed:
        files = [PurePath(file) for line in lines for file in line.row.files]
        measures -= {"benchmark", *(part for file in files if file.name == SUMMARY for part in file.parts)}
    declared = chain.from_iterable(own.items() for name, own in measured_columns().items() if name in measures)
    known = [(name, column) for name, column in declared if any(line.value(name) is not None for line in lines)]
    # A narrow terminal leaves them out after the usual ones, the last first.
    return {name: column.shown(name, drop=100 - at) for at, (name, column) in enumerate(known[:MOST_OWN])}


def _chosen(column: Column, value: Any) -> str:
    return " ".join(column.text(value).split())  # some have several lines


def _usual(column: Column, line: Line, name: str) -> str:
    if column.only and not getattr(line, column.only):
        return ""
    value = line.shown.value(name)
    return "1 (base)" if column.form == "factor" and line.baseline and value else column.brief(value)


def styled_table(
    lines: Sequence[Line],
    names: Names,
    width: int,
    chosen: Sequence[str] = (),
    title: str = "",
    *,
    folder: Path | None = None,
    with_footnotes: bool = True,
) -> Text:
    """Return the table of the run in ``folder`` for ``width`` characters, with footnotes and what has no room."""
    table = table_of(lines, names, chosen)
    parts, dropped = draw(table, width)
    parts = [(f"{title}\n", ""), *parts] if title else parts
    if not with_footnotes:
        return rich_text(parts)
    titles, columns = ", ".join(table.heads[at] for at in dropped), ",".join(table.names[at] for at in dropped)
    show = shlex.join(["show", *([str(folder)] if folder else []), f"columns={columns}"])
    see = f"to see them: a wider terminal, or python -m runner {show}"
    notes = [*footnotes(lines, names), *([f"no room for {titles}; {see}"] if dropped else [])]
    return rich_text([*parts, ("\n" + "\n".join(notes) + "\n" if notes else "", "")])


def row_text(row: Row, names: Names, reason: str) -> str:
    """Return the row in one line, for a log or a pipe."""
    word = f"{verdict(row)}: {reason}" if reason else verdict(row)
    words = [figure(row.time_us, "us"), interval(row.metrics.get("interval_pct"), "+-"), word]
    return " ".join([f"{names.case(row.case)}:", *filter(None, words)])


def case_table(run: Run, lines: Sequence[Line]) -> Table:
    """Return the table that the terminal shows of ``lines`` of ``run``, with all its columns, footnotes and notes."""
    names, rows = run.names, run.rows_of(lines)
    notes = [*footnotes(lines, names), *row_notes([line.row for line in lines], names), f"{run.outcome(rows)}."]
    return replace(table_of(lines, names, run.plan.columns), title=run.heading(rows, FILE_WIDTH), notes=notes)


def words(table: Table, text: str = "") -> dict[str, str]:
    """Explain the words of a table of cases: its heads and verdicts, and terms in it or in ``text``."""
    heads = {head: column_of(name).meaning for head, name in zip(table.heads, table.names, strict=True) if name}
    verdicts = {**VERDICTS, **STATUSES, "ok": VERDICTS["ok"]}
    shown, text = {row[-1] for row in table.rows}, " ".join([text, *table.notes, *(row[0] for row in table.rows)])
    here = {word for word in verdicts if word in shown} | {term for term in TERMS if term in text}
    return {**heads, **{word: meaning for word, meaning in {**verdicts, **TERMS}.items() if word in here}}
