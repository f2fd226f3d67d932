"""Print the tables of past runs again, some of their rows, or all of their data in another format.

RUN is by default the newest run. The tables of several runs follow one another; as csv, json or parquet they are one
table with a column run. Nothing is measured, and no folder of a run changes.

Examples:
  python -m runner show --where workload=gelu,status=ok --sort -time_us
  python -m runner show last columns=time_us,peak_mem_bytes,vs_baseline
  python -m runner show outputs/<date>/<time>-<name> --fastest --output fastest.md
  python -m runner show --explain

"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from ..findings.flat import flat_records
from ..findings.lines import Line
from ..findings.run import Run
from ..findings.select import chosen_lines
from ..records.bad_input import BadInput
from ..report import fastest_table
from ..report.case_table import case_table, words
from ..report.console import console, say
from ..report.flat_formats import RECORDS
from ..report.output import give
from ..report.table import WRITERS, Table
from ..report.terminal import terminal_report
from ._parser import Parser, read_runs

FORMATS = ("table", "md", "latex", "csv", "json", "parquet")


def main(argv: Sequence[str]) -> int:
    """Print or write what is asked for, and return 0. Raises BadInput."""
    options = _options(argv)
    runs = read_runs(options)
    chosen = list(zip(runs, chosen_lines(runs, options.where, options.sort), strict=True))
    if options.fastest and (empty := next((run for run, lines in chosen if not any(x.winner for x in lines)), None)):
        raise BadInput(f"{empty.folder}: no case is correct and timed, so none is the fastest; runner show says why")
    if options.format in RECORDS:
        records = [record for run, lines in chosen for record in _records(run, lines, options)]
        give(RECORDS[options.format](records), options.output)
    elif options.format != "table" or options.fastest:
        tables = [(fastest_table.fastest_table if options.fastest else case_table)(*each) for each in chosen]
        if options.explain:
            tables = [replace(table, notes=[*table.notes, *_explained(table)]) for table in tables]
        give("\n".join(map(WRITERS[options.format], tables)), options.output)
    else:  # as at the end of each run
        text = StringIO()
        out = console(text if options.output else None)
        for place, (run, lines) in enumerate(chosen):
            report = terminal_report(run, out.width, None if lines == run.lines else lines)
            report += ["", *_explained(case_table(run, lines))] if options.explain else []
            for part in ["", *report] if place else report:
                say(out, part)
        if options.output:
            give(text.getvalue(), options.output)
    return 0


def _explained(table: Table) -> list[str]:
    return [f"{word}: {meaning}" for word, meaning in words(table).items()]


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("show", __doc__, ("runs", "output_dir", "columns", "where", "format", "output"), formats=FORMATS)
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="sort the rows of each problem, or the problems if their rows have one value; -COLUMN: highest first",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--fastest", action="store_true", help="one line per problem: the fastest, by how much, and where that changes"
    )
    shown.add_argument("--explain", action="store_true", help="what the columns, verdicts and marks of the table mean")
    words = iter(argv)  # argparse would read the -time_us of --sort as an option
    options = parser.parse([f"--sort={by}" if word == "--sort" and (by := next(words, "")) else word for word in words])
    if options.explain and options.format in RECORDS:
        raise BadInput(f"--explain is for people to read; leave it out with --format {options.format}")
    if options.fastest and options.columns:
        raise BadInput("--fastest chooses what it shows; leave out columns=")
    return options


def _records(run: Run, lines: Sequence[Line], options: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """Yield the records with all columns of rows.csv, or with those that name the case and those that were chosen."""
    settings = {name for line in lines for name in run.names.settings(line.case)}
    chosen = dict.fromkeys(run.plan.columns)
    kept = {"workload", "impl", "status", *settings, *chosen}
    for record in fastest_table.fastest_records(run, lines) if options.fastest else flat_records(lines):
        if chosen and not options.fastest:
            record = chosen | {name: value for name, value in record.items() if name in kept or "." in name}
        yield {"run": run.name, **record} if len(options.runs) > 1 else record
