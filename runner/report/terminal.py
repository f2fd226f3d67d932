"""What the terminal shows after a run: the table, summaries of profilers, notes and conclusions."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from rich.text import Text

from ..findings.kept_files import kept_files, read_kept
from ..findings.lines import Line
from ..findings.names import Names
from ..findings.notes import row_notes
from ..findings.run import Run
from ..measure import SUMMARY
from ..records.figures import figure
from ..records.row import Row
from ..records.untrusted import visible
from .case_table import styled_table

MOST_SUMMARIES = 8  # printed ones; a grid may have a thousand
SUMMARY_BYTES = 2**16  # most of each summary
LARGE_BYTES = 2**27  # from here on, a line says how large the files of a run are


def terminal_report(run: Run, width: int, chosen: Sequence[Line] | None = None) -> list[Text | str]:
    """Return the parts to print: the table, summaries of profilers, notes, conclusions, and where the results are.

    ``chosen``: lines of the run to show, in this order; None: all, and the conclusion.
    """
    lines = run.lines if chosen is None else chosen
    rows, names = run.rows if chosen is None else run.rows_of(lines), run.names
    report: list[Text | str] = []
    if lines:
        title = run.heading(rows, width)
        report.append(styled_table(lines, names, width, run.plan.columns, title, folder=run.folder))
    report += summaries(run.folder, rows, names)
    if any(choice.fields.get("reference") for row in rows for choice in row.case.measures):
        from .reference_table import reference_tables

        report += [f"\n{heading}\n{text}" for heading, text in reference_tables(run.folder, rows, names)]
    report += row_notes([line.row for line in lines], names, run.folder)
    report += large_files(run.folder, rows, names)
    if run.plan.conclusion and chosen is None:
        report += _conclusion(run)
    return [*report, f"{run.outcome(rows)}. Results: {run.folder}"]


def _conclusion(run: Run) -> list[str]:
    """Return the question of ``run`` and the answers to it; none without both."""
    from ..findings.conclusion import answers

    listed = [f"- {answer}" for answer in answers(run)]
    return ["", *([f"Question: {run.plan.question}"] if run.plan.question else []), *listed, ""] if listed else []


def large_files(folder: Path, rows: Sequence[Row], names: Names) -> list[str]:
    """Return a sentence about the files that measurements of ``rows`` keep in ``folder``, if they take much space."""
    kept = [(path.stat().st_size, path, row) for row in rows for path in kept_files(folder, row).values()]
    if (total := sum(size for size, *_ in kept)) < LARGE_BYTES:
        return []
    size, path, row = max(kept, key=lambda file: file[0])
    largest = f"the largest, of {names.case(row.case)}, is {path} ({figure(size, 'byte', 3)})"
    return [f"the files of measurements take {figure(total, 'byte', 3)}; {largest}"]


def summaries(folder: Path, rows: Sequence[Row], names: Names) -> list[str]:
    """Return the first summaries of profilers, each under its case, and how many more there are."""
    files = [(row, *file) for row in rows for file in kept_files(folder, row, SUMMARY).items()]
    texts = []
    for row, name, path in files[:MOST_SUMMARIES]:
        others = [other.name for other in map(PurePath, row.files) if other.parent == name.parent and other != name]
        text = visible(read_kept(path, SUMMARY_BYTES).rstrip())
        texts.append(f"\n{names.case(row.case)}: {name.parent.name}\n{text}")
        texts.append(f"  in {folder / name.parent}" + (f": {', '.join(others)}" if others else ""))
    if len(files) > MOST_SUMMARIES:
        texts.append(f"\n{len(files) - MOST_SUMMARIES} more summaries are in the folders of {folder / 'files'}")
    return texts
