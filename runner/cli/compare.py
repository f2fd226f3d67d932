"""Compare the same cases of several runs, or the cases of one run that differ in one field.

The first RUN is the reference, A. What differs between the runs besides the times is printed first, then how each time
compares (faster, slower, same or unclear, corrected for the number of comparisons), then what cannot be compared and
why. Nothing is measured. The exit code is 0 whatever the result is; runner gate judges.

Examples:
  python -m runner compare outputs/<date>/<time>-<name> last
  python -m runner compare A B C --where workload=gelu --words slower,unclear
  python -m runner compare last --by dtype --reference float32

"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ..findings.run import Run
from ..findings.run_comparison import compare_runs, compare_values
from ..findings.select import chosen_lines
from ..records.bad_input import BadInput, choices
from ..report.comparison import NAMES, WORDS, ComparisonReport
from ..report.output import present
from ._parser import Parser, read_runs

FORMATS = ("table", "md", "csv", "json")


def main(argv: Sequence[str]) -> int:
    """Print the comparison and return 0. Raises BadInput."""
    options = _options(argv)
    runs = _read(options)
    if options.by is None:
        comparisons = compare_runs(runs, NAMES[: len(runs)])
    else:
        comparisons = compare_values(runs[0], options.by, options.reference)
    report = ComparisonReport(comparisons, runs, options.by, frozenset(options.words))
    present(options, report.text, report.table, lambda: list(report.records()))
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    takes = ("runs", "output_dir", "where", "format", "output")
    usage = "RUN RUN [RUN...] [output_dir=FOLDER] [options] | RUN --by FIELD [output_dir=FOLDER]"
    parser = Parser("compare", __doc__, takes, formats=FORMATS, usage=usage)
    parser.add_argument("--by", metavar="FIELD", help="compare cases of one run that differ in this field alone")
    parser.add_argument(
        "--reference", metavar="VALUE", help="the value of that field to compare with; by default the first"
    )
    parser.add_argument(
        "--words",
        type=lambda text: text.split(","),
        default=WORDS,
        metavar="WORD,...",
        help=f"show only these conclusions, of {', '.join(WORDS)}",
    )
    options = parser.parse(argv)
    if unknown := [word for word in options.words if word not in WORDS]:
        raise BadInput(f"--words: {unknown[0]!r} is not a conclusion; {choices(unknown[0], WORDS)}")
    if options.by is None and len(options.runs) < 2:
        raise BadInput("give two runs or more, as in runner compare A B; or one run and --by FIELD, as in --by dtype")
    if options.by is not None and len(options.runs) > 1:
        raise BadInput("--by compares the cases of one run; leave it out to compare runs, or give one run")
    if options.reference and options.by is None:
        raise BadInput("--reference names a value of the field of --by; of several runs, the first is the reference")
    if len(options.runs) > len(NAMES):
        raise BadInput(f"{len(options.runs)} runs; give at most {len(NAMES)}")
    return options


def _read(options: argparse.Namespace) -> list[Run]:
    """Return the runs, with the rows that ``--where`` chooses. Raises BadInput."""
    runs = read_runs(options)
    for run in runs:
        if all(row.time_us is None for row in run.rows):
            raise BadInput(f"{run.folder}: it holds no time to compare ({run.outcome(run.rows)})")
    if not options.where:
        return runs
    chosen = chosen_lines(runs, options.where)
    return [replace(run, rows=run.rows_of(lines)) for run, lines in zip(runs, chosen, strict=True)]
