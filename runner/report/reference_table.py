"""What differs between each implementation of a problem and a reference, by a profiler: from rows and kept files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..findings.kept_files import kept_files, read_csv
from ..findings.names import Names
from ..measure.columns import ComparedQuantity, column_of, compared_quantities
from ..measure.timeline.tables import short
from ..records.case import Choice, Scalar
from ..records.figures import figure, is_number, unit_of
from ..records.grouping import grouped
from ..records.labels import called
from ..records.plain_text import printable, shortened, text_table
from ..records.row import Row

TIMES = ("gpu_us", "total_us")  # columns of kernels.csv
MOST = 8  # tables: a grid may have a thousand problems
LONGEST_WORD = 32  # characters of a kernel's name in a table


def reference_tables(folder: Path, rows: Sequence[Row], names: Names) -> Iterator[tuple[str, str]]:
    """Yield the heading and the text of a table for each problem and each measurement that names a ``reference``."""
    measured = [(row, measure) for row in rows if not row.case.replica for measure in row.case.measures]
    wanted = [(row, measure) for row, measure in measured if measure.fields.get("reference")]
    known = compared_quantities() if wanted else {}
    problems = grouped(wanted, lambda item: (item[0].case.problem, item[1].name))
    tables = [members for (_, name), members in problems.items() if name in known and members[1:]]
    for members in tables[:MOST]:
        measure = members[0][1]
        yield _table(folder, [row for row, _ in members], measure, known[measure.name], names)
    if tables[MOST:]:
        yield f"{len(tables) - MOST} more tables", "  python -m runner show --where ... shows those of some rows"


def _table(
    folder: Path, rows: Sequence[Row], measure: Choice, quantities: Sequence[ComparedQuantity], names: Names
) -> tuple[str, str]:
    """Return the heading and the text of the table of a problem, or why there is nothing to compare."""
    heading, label = f"{names.heading(rows[0].case)}: {measure.name}", str(measure.fields["reference"])
    if not (places := called([row.case.impl for row in rows], label)):
        return heading, f"  nothing to compare: {printable(label)} has no row"
    reference = rows[places[0]]
    others = [row for row in rows if row is not reference]
    figures = [(row, quantities_of(folder, row, measure.name, quantities)) for row in (reference, *others)]
    none = "it has no figures of this measurement"
    lacking = [(row, row.reason or row.metrics.get("not_measured") or none) for row, values in figures if not values]
    missing = [f"{names.impl(row.case)}: {reason}" for row, reason in lacking]
    if not figures[0][1] or not any(values for _, values in figures[1:]):
        missing = missing if figures[0][1] else missing[:1]
        return heading, "\n".join(f"  nothing to compare: {text}" for text in missing)
    labels = [names.impl(row.case) for row, values in figures if values]
    lines = quantity_table(labels, [values for _, values in figures if values], quantities)
    lines += [f"  left out: {text}" for text in missing]
    return f"{heading}, what differs from {labels[0]}", "\n".join(lines)


Figures = Mapping[str, Scalar]  # by the titles of quantities, without those unknown


def quantities_of(folder: Path, row: Row, measure: str, quantities: Sequence[ComparedQuantity]) -> Figures:
    """Return the ``quantities`` of ``row``, whose files are in the run's ``folder``, as far as they are known."""
    files = kept_files(folder, row, f"{measure}/kernels.csv").values()
    kernels = [line for file in files for line in read_csv(file) if line.get("kernel")]
    times: dict[str, float] = {}
    for kernel in kernels:
        times[str(kernel["kernel"])] = times.get(str(kernel["kernel"]), 0.0) + _time(kernel)
    longest = max(kernels, key=lambda kernel: (times[str(kernel["kernel"])], _time(kernel)), default={})
    figures: dict[str, Scalar | None] = {}
    for quantity in quantities:
        if quantity.of == "row":
            figures[quantity.title] = row.metrics.get(quantity.column)
        elif quantity.of == "kernel":
            figures[quantity.title] = longest.get(quantity.column)
        else:
            values = [value for kernel in kernels if (value := kernel.get(quantity.column)) is not None]
            figures[quantity.title] = sum(filter(is_number, values)) if values else None
    return {title: value for title, value in figures.items() if value is not None}


def quantity_table(
    labels: Sequence[str], figures: Sequence[Figures], quantities: Sequence[ComparedQuantity]
) -> list[str]:
    """Return the lines of the table: a column for each of ``labels``, the first the reference; then what is the same.

    A number that differs has its multiple of the reference's behind it.
    """
    rows, same = [["", labels[0], *(cell for label in labels[1:] for cell in (label, ""))]], list[str]()
    for quantity in quantities:
        values = [each.get(quantity.title) for each in figures]
        unit = column_of(quantity.column).unit if quantity.of == "row" else ""
        texts = [_text(value, unit or unit_of(quantity.column)) for value in values]
        if len({*texts}) > 1:
            cells = [(text, _multiple(value, values[0])) for value, text in zip(values[1:], texts[1:], strict=True)]
            rows.append([quantity.title, texts[0], *(cell for pair in cells for cell in pair)])
        elif texts[0]:
            same.append(f"{quantity.title} {texts[0]}")
    lines = text_table(rows, left=(0,)) if rows[1:] else ["  nothing differs"]
    return [*lines, *([f"  the same: {', '.join(same)}"] if same else [])]


def _text(value: Scalar | None, unit: str) -> str:
    text = figure(short(value) if isinstance(value, str) else value, unit)
    return printable(shortened(text, LONGEST_WORD))


def _multiple(value: Scalar | None, reference: Scalar | None) -> str:
    """Return ``0.85x``; "" for words, for equal values, and where the reference is 0."""
    if is_number(value) and is_number(reference) and reference and value != reference:
        return f"{value / reference:.2f}x"
    return ""


def _time(kernel: Mapping[str, Scalar | None]) -> float:
    return next((float(value) for name in TIMES if is_number(value := kernel.get(name))), 0.0)
