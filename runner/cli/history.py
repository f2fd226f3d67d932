"""Draw a figure of the same case over past runs and their commits, and mark the changes.

Cases that differ, and devices that differ, are series of their own. A change is marked at a run from which all later
values differ from all earlier ones by more than runs of the same code do. Nothing is measured, and no folder of a run
changes.

Examples:
  python -m runner history workload=gelu impl=triton dtype=bfloat16,float32
  python -m runner history workload=gelu columns=latency_us --output history.svg
  python -m runner history workload=gelu --output history.html

"""

import sys
from collections.abc import Sequence
from functools import partial

from ..findings.history import read_history
from ..records.bad_input import BadInput
from ..report.history import figure_text, history_chart, history_page, history_records, history_table
from ..report.images import DRAWN, drawn
from ..report.output import give, present
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
    if options.format == "html":
        give(history_page(history), options.output)
    elif options.format in DRAWN:
        give(drawn(history_chart(history), options.format), options.output)
    else:
        forms = partial(figure_text, history), partial(history_table, history), partial(history_records, history)
        present(options, *forms)
    return 0
