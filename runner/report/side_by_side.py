"""What differs between each implementation of a problem and a reference, by a profiler: from rows and kept files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from runner.experiment.case import Scalar, called
from runner.experiment.results import Row, figure, printable, unit_of
from runner.measure import Quantity, known_columns, side_by_side, text_table
from runner.measure.timeline.tables import short
from runner.report.derive import Names
from runner.store import run_folder

KERNELS = "kernels.csv"
TIMES = ("gpu_us", "total_us")  # columns of it
MOST = 8  # tables: a grid may have a thousand problems
LONGEST_WORD = 32  # characters of a kernel's name in a table


def tables(folder: Path, rows: Sequence[Row], names: Names) -> Iterator[tuple[str, str]]:
    """Yield the heading and the text of a table for each problem and each measurement that names a ``reference``."""
    problems: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for measure in row.case.measures:
            if measure.fields.get("reference") and not row.case.replica:
                problems.setdefault((row.case.problem, measure.name), []).append(row)
    known = side_by_side() if problems else {}
    wanted = [((problem, name), some) for (problem, name), some in problems.items() if name in known and some[1:]]
    for (_, name), some in wanted[:MOST]:
        label = next(str(one.fields["reference"]) for one in some[0].case.measures if one.name == name)
        heading = names.heading(some[0].case)
        if not (places := called([row.case.impl for row in some], label)):
            yield f"{heading}: {name}", f"  nothing to compare: {printable(label)} has no row"
            continue
        reference = some[places[0]]
        ordered = [reference, *(row for row in some if row is not reference)]
        found = [figures(folder, row, name, known[name]) for row in ordered]
        if not found[0] or not any(found[1:]):
            whose = ordered[1:] if found[0] else [reference]
            yield f"{heading}: {name}", "\n".join(f"  nothing to compare: {_no_figures(row, names)}" for row in whose)
            continue
        labels = [names.impl(row.case) for row, one in zip(ordered, found, strict=True) if one]
        lines = table(labels, [one for one in found if one], known[name])
        missing = [f"  left out: {_no_figures(row, names)}" for row, one in zip(ordered, found, strict=True) if not one]
        yield f"{heading}: {name}, what differs from {labels[0]}", "\n".join([*lines, *missing])
    if wanted[MOST:]:
        yield f"{len(wanted) - MOST} more tables", "  python -m runner show --where ... shows those of some rows"


Figures = Mapping[str, Scalar]  # by the titles of quantities, without those unknown


def figures(folder: Path, row: Row, measure: str, quantities: Sequence[Quantity]) -> Figures:
    """Return the ``quantities`` of ``row``, whose files are in the run's ``folder``, as far as they are known."""
    kernels = _kernels(folder, row, measure)
    times: dict[str, float] = {}
    for kernel in kernels:
        times[str(kernel["kernel"])] = times.get(str(kernel["kernel"]), 0.0) + _time(kernel)
    longest = max(kernels, key=lambda kernel: (times[str(kernel["kernel"])], _time(kernel)), default={})
    found: dict[str, Scalar] = {}
    for one in quantities:
        values = [kernel[one.column] for kernel in kernels if kernel.get(one.column) is not None]
        if one.of == "row":
            value = row.metrics.get(one.column)
        elif one.of == "kernel":
            value = longest.get(one.column)
        else:
            value = sum(each for each in values if isinstance(each, int | float)) if values else None
        if value is not None:
            found[one.title] = value
    return found


def table(labels: Sequence[str], found: Sequence[Figures], quantities: Sequence[Quantity]) -> list[str]:
    """Return the lines of the table: a column for each of ``labels``, the first the reference; then what is the same.

    A number that differs has its multiple of the reference's behind it.
    """
    units = {name: column.unit for name, column in known_columns().items()}
    rows, same = [["", labels[0], *(cell for label in labels[1:] for cell in (label, ""))]], list[str]()
    for one in quantities:
        values = [each.get(one.title) for each in found]
        unit = units.get(one.column) or unit_of(one.column) if one.of == "row" else unit_of(one.column)
        texts = [_text(value, unit) for value in values]
        if not any(texts):
            continue
        if len(set(texts)) == 1:
            same.append(f"{one.title} {texts[0]}")
            continue
        cells = [one.title, texts[0]]
        for value, text in zip(values[1:], texts[1:], strict=True):
            cells += [text, _multiple(value, values[0])]
        rows.append(cells)
    lines = text_table(rows, left=(0,)) if rows[1:] else ["  nothing differs"]
    return [*lines, *([f"  the same: {', '.join(same)}"] if same else [])]


def _text(value: Scalar | None, unit: str) -> str:
    text = figure(short(value) if isinstance(value, str) else value, unit)
    return printable(text if len(text) <= LONGEST_WORD else f"{text[: LONGEST_WORD - 1]}…")


def _multiple(value: Scalar | None, reference: Scalar | None) -> str:
    """Return ``0.85x``; "" for words, for equal values, and where the reference is 0."""
    numbers = [one for one in (value, reference) if isinstance(one, int | float) and not isinstance(one, bool)]
    return f"{numbers[0] / numbers[1]:.2f}x" if numbers[1:] and value != reference and numbers[1] else ""


def _no_figures(row: Row, names: Names) -> str:
    """Say why ``row`` has no figures of the measurement."""
    why = row.reason or row.metrics.get("not_measured") or "it has no figures of this measurement"
    return f"{names.impl(row.case)}: {why}"


def _kernels(folder: Path, row: Row, measure: str) -> Sequence[Mapping[str, Scalar | None]]:
    """Return the lines of the measurement's ``kernels.csv``; none if the file is not here or is damaged."""
    for file in map(PurePath, row.files):
        if file.name == KERNELS and file.parent.name == measure and (path := run_folder.artifact(folder, str(file))):
            return _read(path)
    return ()


def _read(path: Path) -> Sequence[Mapping[str, Scalar | None]]:
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            lines = list(csv.DictReader(file))
    except (OSError, csv.Error):
        return ()
    return [{name: _value(cell) for name, cell in line.items()} for line in lines if line.get("kernel")]


def _value(cell: object) -> Scalar | None:
    """Return a cell of a CSV file as a number if it is one; None if it is empty."""
    if not isinstance(cell, str) or not cell:
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _time(kernel: Mapping[str, Scalar | None]) -> float:
    known = [kernel[name] for name in TIMES if isinstance(kernel.get(name), int | float)]
    return float(known[0] or 0.0) if known else 0.0
