"""Print the table of a past run again, or all of it in another format.

RUN is the folder of a run, or last, the default: the newest one under output_dir. The tables of several runs follow one
another; as csv, json or parquet they are one table with a column run. No folder of a run is changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.schema import BadInput, Parser, choices

if TYPE_CHECKING:
    from runner.report.derive import Line, Run

FORMATS = ("table", "md", "latex", "csv", "json", "parquet")
ENDINGS = {".md": "md", ".tex": "latex", ".csv": "csv", ".json": "json", ".parquet": "parquet"}  # of files
FIELDS = ("columns", "output_dir")  # of a run, which are written the same here


def main(argv: Sequence[str]) -> int:
    """Print what was asked for, and return 0. Raises BadInput."""
    asked = _parser().parse_intermixed_args(_joined(argv))
    of, fields = _words(asked.words)
    form = asked.format or ENDINGS.get(Path(asked.output or "").suffix, "table")
    if form == "parquet" and not asked.output:
        raise BadInput("--format parquet is no text; add --output FILE")

    from runner.report import past

    runs = past.read_all(of or ["last"], fields.get("output_dir") or past.OUTPUTS)
    chosen = _choose(runs, asked.where, asked.sort, fields.get("columns"))
    if form in ("csv", "json", "parquet"):
        content = _records(chosen, form, fastest=asked.fastest)
    elif form == "table" and not asked.fastest:
        return _tables(chosen, asked.output)
    else:
        content = _sheets(chosen, form, fastest=asked.fastest)
    _give(content, asked.output, runs)
    return 0


def _parser() -> Parser:
    usage = "runner show [RUN...] [columns=NAME,...] [output_dir=FOLDER] [options]"
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="runner show", usage=usage, description=__doc__, formatter_class=raw)
    parser.add_argument("words", nargs="*", metavar="RUN", help="folder of a run, last, columns=... or output_dir=...")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="only such rows: workload=gelu,dtype=bfloat16,status=ok. Names are the columns of rows.csv, without "
        "workload. or impl. if you like; several values are alternatives: impl=torch,triton",
    )
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="sort the rows of each problem, or the problems if their rows have one value; -COLUMN: highest first",
    )
    parser.add_argument(
        "--fastest", action="store_true", help="one line per problem: the fastest, by how much, and where that changes"
    )
    parser.add_argument("--format", choices=FORMATS, help="by default the one that FILE ends in, else table")
    parser.add_argument("--output", metavar="FILE", help="write it there; its folder must exist")
    return parser


def _joined(argv: Sequence[str]) -> list[str]:
    """Return the words with ``--sort -time_us`` as one: argparse would read ``-time_us`` as an option."""
    words = list(argv)
    for place in range(len(words) - 1):
        if words[place] == "--sort":
            words[place : place + 2] = [f"--sort={words[place + 1]}", ""]
    return [word for word in words if word]


def _words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the runs that are named, and the fields that are given. Raises BadInput for an unknown field."""
    runs, fields = [], {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in FIELDS and equals:
            fields[name] = value
        elif equals and "/" not in name and not Path(word).exists():
            raise BadInput(f"{name}: no field of show; {choices(name, FIELDS)}")
        else:
            runs.append(word)
    return runs, fields


@dataclass(frozen=True)
class _Chosen:
    """Some lines of a run, in the order to show them, and the same as flat records."""

    run: Run
    lines: Sequence[Line]
    records: Sequence[Mapping[str, Any]]

    @property
    def some(self) -> Sequence[Line] | None:
        """The lines, if they are not those of the run."""
        return None if list(self.lines) == self.run.lines else self.lines


def _choose(runs: Sequence[Run], where: Sequence[str], sort: str | None, columns: str | None) -> list[_Chosen]:
    """Return the lines of each run that were asked for. Raises BadInput."""
    from runner.measure import check_columns
    from runner.report import formats, select

    if columns:
        names = [name for name in columns.strip("[]").split(",") if name]
        shown = check_columns(names, {name for run in runs for row in run.rows for name in row.metrics})
        runs = [replace(run, columns=shown) for run in runs]
    flat = bool(where or sort)
    found = [_Chosen(run, run.lines, formats.flat_records(run.lines) if flat else ()) for run in runs]
    if where:
        kept = select.where_in_each([one.records for one in found], where)
        found = [_at(one, places) for one, places in zip(found, kept, strict=True)]
    if sort:
        found = [
            _at(one, select.order(one.records, [line.row.case.problem for line in one.lines], sort)) for one in found
        ]
    return found


def _at(chosen: _Chosen, places: Sequence[int]) -> _Chosen:
    return _Chosen(chosen.run, [chosen.lines[at] for at in places], [chosen.records[at] for at in places])


def _tables(chosen: Sequence[_Chosen], output: str | None) -> int:
    """Print the tables as at the end of each run, or write them to the file ``output``."""
    from io import StringIO

    from rich.console import Console

    from runner.report.terminal import FILE_WIDTH, Terminal, console

    text = StringIO()
    out = Console(file=text, width=FILE_WIDTH) if output else console()
    for place, one in enumerate(chosen):
        if place:
            out.print()
        for message in Terminal(one.run, out.width, one.some).publish(one.run.folder):
            out.print(message, markup=False, highlight=False, soft_wrap=True)
    if output:
        _give(text.getvalue(), output, [one.run for one in chosen])
    return 0


def _sheets(chosen: Sequence[_Chosen], form: str, *, fastest: bool) -> str:
    from runner.report import fastest as leaders
    from runner.report import formats

    make = leaders.sheet if fastest else formats.sheet
    return "\n".join(formats.SHEETS[form](make(one.run, one.lines)) for one in chosen)


def _records(chosen: Sequence[_Chosen], form: str, *, fastest: bool) -> str | bytes:
    """Return all columns of rows.csv, or those that name the case and those that were chosen."""
    from runner.report import fastest as leaders
    from runner.report import formats

    found: list[dict[str, Any]] = []
    for one in chosen:
        records = leaders.records(one.run, one.lines) if fastest else formats.flat_records(one.lines)
        if one.run.columns and not fastest:
            settings = {name for line in one.lines for name in one.run.names.settings(line.row.case)}
            kept = {"workload", "impl", "status", *settings, *one.run.columns}
            records = [
                {name: value for name, value in record.items() if name in kept or "." in name} for record in records
            ]
        found += [{"run": one.run.name, **record} for record in records] if chosen[1:] else records
    return formats.RECORDS[form](found)


def _give(content: str | bytes, output: str | None, runs: Sequence[Run]) -> None:
    """Print ``content``, or write it to the file ``output``. Raises BadInput."""
    from runner.report import formats

    if output:
        formats.write(content, output, runs, "show")
    else:
        print(content, end="")
