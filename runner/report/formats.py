"""The rows of a run as text, Markdown, LaTeX, CSV, JSON or Parquet; ``rows.csv`` and ``table.md``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.experiment.case import CaseRecord
from runner.experiment.columns import COLUMNS, DERIVED
from runner.experiment.schema import BadInput
from runner.measure import text_table
from runner.report import terminal
from runner.report.derive import Line, Names, Run
from runner.report.terminal import FILE_WIDTH

TABLE, ROWS = "table.md", "rows.csv"  # in the folder of a run
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Sheet:
    """A table for people."""

    title: str  # its first line is the title itself
    heads: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Sequence[str]]]]  # a heading, "" for none, and the rows below it
    notes: Sequence[str]  # one sentence each
    left: frozenset[int]  # places of the columns of words, which are aligned to the left; others have figures
    best: frozenset[str] = frozenset()  # marks that begin the first cell of a row to emphasize


def sheet(run: Run, lines: Sequence[Line]) -> Sheet:
    """Return the table that the terminal shows of ``lines`` of ``run``, with all its columns, footnotes and notes."""
    names, rows = run.names, run.rows_of(lines)
    first, filled, last = terminal.cells(lines, names, run.columns)
    heads, *texts = zip(first, *filled.values(), last, strict=True)
    groups: list[tuple[str, list[Sequence[str]]]] = []
    problem = None
    for line, cells in zip(lines, texts, strict=True):
        if line.row.case.problem != problem:
            problem = line.row.case.problem
            groups.append((names.heading(line.row.case), []))
        groups[-1][1].append([" ".join(cell.split()) for cell in cells])  # a chosen column may have several lines
    notes = [*terminal.explain(lines, names), *terminal.notes([line.row for line in lines], names)]
    title = terminal.title(run, rows, FILE_WIDTH)
    words = frozenset({0, len(heads) - 1})
    return Sheet(title, heads, groups, [*notes, f"{terminal.ended(run, rows)}."], words, frozenset("★≈"))


def text(sheet: Sheet) -> str:
    """Return ``sheet`` as plain text."""
    rows = [row for _, group in sheet.groups for row in group]
    lines = text_table([sheet.heads, *rows], sheet.left)
    return "\n".join([sheet.title, *lines, "", *sheet.notes, ""])


def markdown(sheet: Sheet) -> str:
    """Return ``sheet`` in GitHub's Markdown; the heading of several groups is their first column."""
    several = len(sheet.groups) > 1
    heads = [*(["problem"] if several else []), *sheet.heads]
    sides = [*(["---"] if several else []), *("---" if at in sheet.left else "---:" for at in range(len(sheet.heads)))]
    drawn = [_line(map(escaped, heads)), _line(sides)]
    for heading, rows in sheet.groups:
        for place, cells in enumerate(rows):
            first, *others = escaped("\n".join(cells)).split("\n")  # at once: a grid has ten thousand rows
            first = f"**{first}**" if first[:1] in sheet.best else first
            drawn.append(_line([*([escaped(heading) if place == 0 else ""] if several else []), first, *others]))
    title, *constants = map(escaped, sheet.title.splitlines())
    items = [f"- {escaped(' '.join(note.split()))}" for note in sheet.notes]
    return "\n".join([f"### {title}", *(f"\n{line}" for line in constants), "", *drawn, "", *items, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


SPECIAL = re.compile(r"[\\`*<>|~\[\]]|(?<!\w)_|_(?!\w)")  # signs of Markdown; not the underscores in ``vs_baseline``


def escaped(text: str) -> str:
    """Return ``text`` for Markdown, in which none of its signs has a meaning."""
    return SPECIAL.sub(lambda found: f"\\{found[0]}", text.replace("&", "&amp;"))


LATEX = {
    **{sign: f"\\{sign}" for sign in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "★": r"$\star$",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "µ": r"\textmu{}",
}


def latex(sheet: Sheet) -> str:
    """Return ``sheet`` as a ``table`` of LaTeX, which needs the package booktabs."""
    title, *constants = sheet.title.splitlines()
    count, several = len(sheet.heads), len(sheet.groups) > 1
    sides = "".join("l" if place in sheet.left else "r" for place in range(count))
    rows = []
    for place, (heading, group) in enumerate(sheet.groups):
        if several and heading:
            rows += [r"\addlinespace"] if place else []
            rows.append(rf"\multicolumn{{{count}}}{{l}}{{\textbf{{{_tex(heading)}}}}} \\")
        for cells in group:
            first, *others = map(_tex, cells)
            rows.append(" & ".join([rf"\textbf{{{first}}}" if cells[0][:1] in sheet.best else first, *others]) + r" \\")
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex('. '.join([title, *constants]))}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            " & ".join(map(_tex, sheet.heads)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_tex(' '.join(note.split()))}" for note in sheet.notes),
            r"\end{table}",
            "",
        ]
    )


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def case_fields(case: CaseRecord) -> dict[str, Any]:
    """Return workload and implementation with their fields, named as on the command line: ``workload.cols``."""
    return {
        "workload": case.workload.name,
        **{f"workload.{name}": value for name, value in case.workload.fields.items()},
        "impl": case.impl.name,
        **{f"impl.{name}": value for name, value in case.impl.fields.items()},
    }


def flat_records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each line as one flat mapping.

    Fields are named as on the command line: ``workload.cols``, ``impl.mode``. Settings beside the workload and the
    implementation are there if they vary. Measured columns are in the order of their declaration, unknown ones, from
    other versions, after them.
    """
    names = Names([line.row.case for line in lines])
    order = {name: place for place, name in enumerate(COLUMNS)}
    records = []
    for line in lines:
        row, case = line.row, line.row.case
        records.append(
            {
                **case_fields(case),
                **names.settings(case),
                "seed": case.seed,
                "device": row.device,
                "status": row.status,
                "reason": row.reason,
                "phase": row.phase,
                **{name: names.value(line, name) for name in DERIVED},
                **{name: row.metrics[name] for name in sorted(row.metrics, key=lambda n: order.get(n, len(order)))},
                "key": case.key,
            }
        )
    return records


def columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of ``records``: run, workload, implementation, then the others, and the key last."""
    rank = {"run": -1, "workload": 0, "impl": 1, "key": 3}
    found = dict.fromkeys(name for record in records for name in record)
    return sorted(found, key=lambda name: rank.get(name.partition(".")[0], 2))


def csv_text(records: Records) -> str:
    """Return ``records`` as CSV with a header."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns(records), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def json_text(records: Records) -> str:
    """Return ``records`` as a JSON array, one record a line. NaN and infinity are null."""
    import orjson

    lines = [orjson.dumps(dict(record), option=orjson.OPT_NON_STR_KEYS).decode() for record in records]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def parquet(records: Records) -> bytes:
    """Return ``records`` as a Parquet file. Raises BadInput if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet as writer
    except ModuleNotFoundError:
        raise BadInput("--format parquet needs pyarrow; pip install 'kernel-runner[parquet]'") from None
    table = pyarrow.table({name: _uniform([record.get(name) for record in records]) for name in columns(records)})
    file = io.BytesIO()
    writer.write_table(table, file)
    return file.getvalue()


def _uniform(values: Sequence[Any]) -> Sequence[Any]:
    """Return ``values`` of one type, which a column of Parquet must have: numbers, or else their texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(value) if value is not None and float in kinds else value for value in values]
    return [None if value is None else str(value) for value in values]


SHEETS: Mapping[str, Callable[[Sheet], str]] = {"table": text, "md": markdown, "latex": latex}
RECORDS: Mapping[str, Callable[[Records], str | bytes]] = {"csv": csv_text, "json": json_text, "parquet": parquet}


@dataclass(frozen=True)
class Csv:
    """The reporter that writes ``rows.csv``."""

    lines: Sequence[Line]

    def publish(self, folder: Path) -> list[str]:
        """Write the file, and return a message if that fails."""
        return _write(folder / ROWS, csv_text(flat_records(self.lines)))


@dataclass(frozen=True)
class Markdown:
    """The reporter that writes ``table.md``."""

    run: Run

    def publish(self, folder: Path) -> list[str]:
        """Write the file, and return a message if that fails."""
        return _write(folder / TABLE, markdown(sheet(self.run, self.run.lines)))


def write(content: str | bytes, output: str, runs: Sequence[Run], command: str) -> None:
    """Write ``content`` to the file ``output`` for the sub-command ``command``.

    Raises BadInput, also if that file is in the folder of one of ``runs``.
    """
    from runner.store import run_folder

    path = Path(output)
    if inside := [run.folder for run in runs if path.resolve().is_relative_to(run.folder.resolve())]:
        unchanged = f"{inside[0]} is the folder of a run, which {command} does not change"
        raise BadInput(f"--output {output}: {unchanged}; name another")
    try:
        run_folder.replace(path, content.encode(errors="replace") if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(f"--output {output}: cannot be written: {error.strerror or error}") from None


def _write(path: Path, text: str) -> list[str]:
    from runner.store import run_folder

    try:
        run_folder.replace(path, text.encode())
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []
