"""Draw a figure of the same case over past runs and their commits, and mark the changes.

Cases that differ, and devices that differ, are series of their own. A change is marked at a run from which all later
values differ from all earlier ones by more than runs of the same code do. Nothing is measured, and no folder of a run
changes.

Examples:
  python -m runner history workload=gelu impl=triton dtype=bfloat16,float32
  python -m runner history workload=gelu columns=latency_us --output history.svg
  python -m runner history workload=gelu --output history.html

"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..findings.history import History, read_history
from ..records.bad_input import BadInput
from ..report.console import FILE_WIDTH, console, say
from ..report.flat_formats import RECORDS
from ..report.images import drawn
from ..report.output import give
from ..report.table import markdown_of
from ._parser import Parser

FORMATS = ("table", "md", "csv", "json", "png", "svg", "html")


def main(argv: Sequence[str]) -> int:
    """Print the figure or write it, and return 0. Raises BadInput."""
    takes = ("conditions", "output_dir", "columns", "where", "format", "output")
    options = Parser("history", __doc__, takes, formats=FORMATS).parse(argv)
    column = options.columns or "time_us"
    if "," in column:
        raise BadInput(f"columns={column}: history draws one column; give one")
    history = read_history(options.output_dir, options.where, column)
    for message in history.messages:
        print(f"runner: {message}", file=sys.stderr)
    if options.format == "table" and not options.output:
        _print(history)
    else:
        give(_content(history, options.format), options.output)
    return 0


def _print(history: History) -> None:
    from ..report.history import figure_text

    out = console()
    for line in figure_text(history, out.width):
        if out.is_terminal:
            say(out, line)
        else:  # of thousands of lines rich would take most of the time
            print(line.plain)


def _content(history: History, form: str) -> str | bytes:
    """Return the figure in the format ``form``. Raises BadInput if vl-convert is not installed for an image."""
    from ..report.history import figure_text, history_chart, history_page, history_records, history_table

    if form == "table":
        return "".join(f"{line.plain}\n" for line in figure_text(history, FILE_WIDTH))
    if form == "md":
        return markdown_of(history_table(history))
    if form == "html":
        return history_page(history)
    if form in RECORDS:
        return RECORDS[form](history_records(history))
    return drawn(history_chart(history), form)
